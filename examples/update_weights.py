"""New weights for a running server, without a restart: start it with `--weight-update-folders DIR`."""

import argparse
from typing import Any

import httpx


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:30000")
    parser.add_argument("--checkpoint", required=True, help="a checkpoint of the same model, in one of these folders")
    parser.add_argument("--version", default="step-1", help="what answers call the new weights")
    parser.add_argument("--admin-api-key", default="None")
    args = parser.parse_args()

    headers = {"Authorization": f"Bearer {args.admin_api_key}"}
    with httpx.Client(base_url=args.base_url, headers=headers, timeout=600) as client:
        print("before:", client.get("/model_info").raise_for_status().json()["weight_version"])
        body = {"model_path": args.checkpoint, "weight_version": args.version}
        update = client.post("/update_weights_from_disk", json=body)
        print("update:", update.json().get("message") or update.text)
        request: dict[str, Any] = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 8}}
        answer = client.post("/generate", json=request).raise_for_status().json()
        print("answered by:", answer["meta_info"]["weight_version"])


if __name__ == "__main__":
    main()
