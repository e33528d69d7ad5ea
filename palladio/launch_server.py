"""`python -m palladio.launch_server --model-path …`, the name of SGLang's command; `server/launch.py` does the work."""

import sys

from palladio.processes.hidden_modules import explain_hidden_modules

if __name__ == "__main__":
    explain_hidden_modules()

from palladio.server.early_start import begin_to_serve

if __name__ == "__main__":
    _early = begin_to_serve(sys.argv[1:])  # before what takes a second to import

from palladio.server.launch import launch, main

__all__ = ["launch", "main"]

if __name__ == "__main__":
    sys.exit(main(early=_early))
