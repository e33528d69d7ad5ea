"""Reads /metrics (Prometheus's text format) before and after a request: how many tokens were generated."""

import argparse
import urllib.request

from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

GENERATED = "sglang:generation_tokens_total"


def read(base_url: str) -> dict[str, float]:
    """Name of each metric that has no more than a model's name as label → value."""
    with urllib.request.urlopen(f"{base_url}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample.value for family in families for sample in family.samples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    base_url = parser.parse_args().base_url

    before = read(base_url)
    client = OpenAI(base_url=f"{base_url}/v1", api_key="None")
    client.completions.create(
        model=client.models.list().data[0].id, prompt="Once upon a time", max_tokens=8, extra_body={"ignore_eos": True}
    )
    after = read(base_url)
    print(f"{GENERATED}: {after[GENERATED] - before.get(GENERATED, 0):.0f} more")


if __name__ == "__main__":
    main()
