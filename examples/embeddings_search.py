"""Search by meaning: documents in the order of how near their embeddings are to the question's.

Start a server with `--is-embedding` and give its --base-url, or give --model-path to compute them in this process.
"""

import argparse

import numpy as np
from openai import OpenAI

from palladio import Engine

DOCUMENTS = ("The cat sleeps on the sofa.", "The stock market fell today.", "A dog plays in the garden.")
QUESTION = "Where is the cat?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--base-url", help="such as http://127.0.0.1:30000")
    source.add_argument("--model-path", help="a Hugging Face model directory, or a hub id")
    args = parser.parse_args()

    texts = [*DOCUMENTS, QUESTION]
    if args.base_url:
        client = OpenAI(base_url=f"{args.base_url}/v1", api_key="None")
        answer = client.embeddings.create(model=client.models.list().data[0].id, input=texts)
        vectors = np.array([item.embedding for item in answer.data])
    else:
        with Engine(model_path=args.model_path, is_embedding=True, compile="lazy", max_running_requests=4) as engine:
            vectors = np.array([result["embedding"] for result in engine.encode(texts)])
    similarity = vectors[:-1] @ vectors[-1]  # the vectors have length 1
    for place in np.argsort(-similarity):
        print(f"{similarity[place]:.3f} {DOCUMENTS[place]}")


if __name__ == "__main__":  # not to be left out: the engine may start processes
    main()
