"""Sends loads with vLLM's own benchmark client: `python -m workshop.measure.vllm_client_process`.

Each message is the list of arguments of one `vllm bench serve`. The answer is sent once that run
has ended: true, or false after an error. The result is in the file that the arguments name; what
vLLM prints is on standard error.
"""

import argparse
import asyncio
import sys
import traceback

from workshop.workarounds import cpu_package_name
from workshop.worker_process import Channel, JsonLines


def main() -> None:
    """Run one load after the other until the input ends."""
    channel = Channel(JsonLines())  # before vLLM is loaded, which prints
    cpu_package_name.apply()
    from vllm.benchmarks import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm bench serve")
    serve.add_cli_args(parser)
    for arguments in channel:
        finished = True
        try:
            options = argparse.Namespace()
            parser.parse_args(arguments, options)
            asyncio.run(serve.main_async(options))
        except (Exception, SystemExit):  # the caller sees that there is no result, and reads why
            finished = False
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        channel.send(finished)


if __name__ == "__main__":
    main()
