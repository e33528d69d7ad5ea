"""Embeddings: with --base-url of a server started with `--is-embedding`, else in this process from --model-path."""

import argparse

import numpy as np
from openai import OpenAI

from palladio import Engine

TEXTS = ["The cat sleeps on the sofa.", "A cat is sleeping on a couch.", "The stock market fell today."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--base-url", help="such as http://127.0.0.1:30000")
    source.add_argument("--model-path", help="a Hugging Face model directory, or a hub id")
    args = parser.parse_args()

    if args.base_url:
        client = OpenAI(base_url=f"{args.base_url}/v1", api_key="None")
        answer = client.embeddings.create(model=client.models.list().data[0].id, input=TEXTS)
        vectors = np.array([item.embedding for item in answer.data])
    else:
        with Engine(model_path=args.model_path, is_embedding=True, compile="lazy", max_running_requests=4) as engine:
            vectors = np.array([result["embedding"] for result in engine.encode(TEXTS)])
    similarity = vectors @ vectors.T  # the vectors have length 1
    print(f"{vectors.shape[0]} vectors of {vectors.shape[1]} numbers")
    for text, value in zip(TEXTS, similarity[0], strict=True):
        print(f"{value:.3f} {text}")


if __name__ == "__main__":  # not to be left out: the engine may start processes
    main()
