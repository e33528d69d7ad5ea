"""The names that other servers have for their parsers: each is a parser here, or is refused with the reason."""

import pytest

from palladio.http.reasoning import registry as reasoning
from palladio.http.reasoning.registry import REFUSED
from palladio.http.tool_calls.registry import check_format
from palladio.runtime.interface.errors import ConfigError

# --tool-call-parser and --reasoning-parser of SGLang 0.5.23 and vLLM 0.32
SGLANG_TOOLS = """
    apertus2509 beam cohere_command4 deepseekv3 deepseekv31 deepseekv32 deepseekv4 deepseekv41 dots gemma4 gigachat3
    gigachat35 glm glm45 glm47 gpt-oss hermes hunyuan inkling interns1 iquest_q1 k2_horizon kimi_k2 kimi_k3 lfm2
    ling3 llama3 mimo minicpm5 minimax-m2 minimax-m3 mistral muse nanbeige poolside_v1 pythonic qwen qwen25
    qwen3_coder response_template spark25 step3 step3p5 trinity
"""
VLLM_TOOLS = """
    apertus cohere_command3 cohere_command4 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 dots
    ernie45 functiongemma gemma4 gigachat3 glm45 glm47 granite granite-20b-fc granite4 hermes hf hunyuan_a13b hy_v3
    hy_v4 inkling internlm jamba k2_horizon kimi_k2 kimi_k3 lfm2 ling3 llama3_json llama4_json llama4_pythonic
    longcat mimo minicpm5 minimax_m2 minimax_m3 mistral muse_glimmer olmo3 openai phi4_mini_json plamo3 poolside_v1
    pythonic qwen3_coder qwen3_json qwen3_xml seed_oss step3 step3p5 xlam
"""
SGLANG_REASONING = """
    apertus2509 beam cohere_command4 deepseek-r1 deepseek-v3 deepseek-v4 deepseek-v41 dots gemma4 gigachat35 glm45
    gpt-oss granite_thinking_parser hunyuan inkling interns1 iquest_q1 k2_horizon kimi kimi_k2 kimi_k3 ling3 mimo
    minimax minimax-append-think minimax-m3 mistral muse nanbeige nemotron_3 poolside_v1 qwen3 qwen3-thinking
    response_template step3 step3p5
"""
VLLM_REASONING = """
    cohere_command3 cohere_command4 deepseek_r1 deepseek_v3 deepseek_v4 deepseek_v41 ernie45 gemma4 glm45 glm47
    granite granite_thinking_parser hf holo2 hunyuan_a13b hy_v3 hy_v4 inkling k2_horizon kimi_k2 kimi_k3 ling3 mimo
    minicpmv minimax_m2 minimax_m2_append_think minimax_m3 mistral muse_glimmer nemotron_v3 olmo3 openai_gptoss
    plamo3 poolside_v1 qwen3 seed_oss step3 step3p5
"""


@pytest.mark.parametrize("name", sorted({*SGLANG_TOOLS.split(), *VLLM_TOOLS.split()}))
def test_tool_calls(name: str) -> None:
    if name not in REFUSED:
        check_format(name)
        return
    with pytest.raises(ConfigError, match=REFUSED[name]):
        check_format(name)


@pytest.mark.parametrize("name", sorted({*SGLANG_REASONING.split(), *VLLM_REASONING.split()}))
def test_reasoning(name: str) -> None:
    if name not in REFUSED:
        reasoning.check_name(name)
        return
    with pytest.raises(ConfigError, match=REFUSED[name]):
        reasoning.check_name(name)


def test_only_one_name_is_refused() -> None:
    assert {*REFUSED} == {"beam"}
