"""After an installation without dependencies: is torch one that this machine can import?

Some registries' torch is built for CUDA and cannot be imported without several GB of CUDA libraries, which the lock
file leaves out on purpose. Then they are installed after all: larger, and it works.
"""

import subprocess
import sys

IMPORT = "import torch; print(torch.__version__)"


def main() -> None:
    """Check, and mend if needed; ends with a sentence when neither works."""
    first = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False)
    if first.returncode == 0:
        return
    sys.stderr.write(
        "This torch is built for CUDA and cannot be imported alone; installing its CUDA libraries too (several GB).\n"
        "To avoid that, let pip find a CPU build (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL), then `make clean`.\n"
    )
    from importlib.metadata import version

    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", f"torch=={version('torch')}"], check=True)
    again = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False)
    if again.returncode != 0:
        sys.exit(f"torch cannot be imported in {sys.prefix}: {again.stderr.strip().splitlines()[-1]}")


if __name__ == "__main__":
    main()
