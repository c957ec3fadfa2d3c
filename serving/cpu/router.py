"""The router, started without SGLang.

    python -m serving.cpu.router <the arguments of sglang_router.launch_router>

`sglang_router.launch_router` imports its Python load balancer for debugging, which imports SGLang, for eleven seconds
of which the router in Rust needs nothing.
"""

import argparse
import sys

from sglang_router.router import Router
from sglang_router.router_args import RouterArgs


def main(arguments: list[str]) -> None:
    """Run the router until it ends."""
    parser = argparse.ArgumentParser(prog="python -m serving.cpu.router")
    RouterArgs.add_cli_args(parser, use_router_prefix=False)
    router_args = RouterArgs.from_cli_args(parser.parse_args(arguments), use_router_prefix=False)
    if router_args.mini_lb:
        parser.error("--mini-lb is the load balancer in Python, which this launcher leaves out")
    router_args._validate_router_args()  # what sglang_router.launch_router does, too
    Router.from_args(router_args).start()


if __name__ == "__main__":
    main(sys.argv[1:])
