"""Sends loads with vLLM's own benchmark client: `python -m workshop.simulate.bench.client_process`.

Each line of its input is the list of arguments of one `vllm bench serve`, as JSON. It answers each with an empty line
once that run has ended, and goes on with the next. What vLLM prints goes to standard error.
"""

import argparse
import asyncio
import json
import os
import sys
import traceback

from workshop.workarounds import cpu_package_name


def main() -> None:
    """Run one load after the other until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cpu_package_name.apply()
    from vllm.benchmarks import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm bench serve")
    serve.add_cli_args(parser)
    for line in sys.stdin:
        try:
            options = argparse.Namespace()
            parser.parse_args(json.loads(line), options)
            asyncio.run(serve.main_async(options))
        except (Exception, SystemExit):  # the caller sees that there is no result, and reads why
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        answers.write("\n")
        answers.flush()


if __name__ == "__main__":
    main()
