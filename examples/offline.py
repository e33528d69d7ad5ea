"""Generation without a server: the engine runs in this process."""

import argparse

from palladio import Engine, SamplingParams

PROMPTS = ["Once upon a time", "Python is"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-path", required=True, help="a Hugging Face model directory, or a hub id")
    parser.add_argument("--compile", default="lazy", help="lazy starts at once; full compiles everything first")
    args = parser.parse_args()

    with Engine(model_path=args.model_path, compile=args.compile, max_running_requests=2) as engine:
        params = SamplingParams(temperature=0, max_tokens=16)
        for prompt, result in zip(PROMPTS, engine.generate(PROMPTS, params), strict=True):
            print(f"{prompt}|{result['text']}")


if __name__ == "__main__":  # not to be left out: the engine may start processes
    main()
