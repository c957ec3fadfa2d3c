"""A rank of a transfer test that does one thing wrong, named by FAULTY_RANK, when the first write arrives."""

import os
import signal
import sys

from serving.transfer_test import rank
from serving.transfer_test.memory import Slot

VARIABLE = "FAULTY_RANK"


class FaultyRank(rank.Rank):
    """`corrupt`: a word of what arrived is another. `foreign`: a word beside it. `dead`: it is killed."""

    def arrived(self, slot: Slot) -> None:
        fault = os.environ.pop(VARIABLE, "") if self.side == rank.DESTINATION else ""
        words = self.memory._words
        if fault == "corrupt":
            words[slot.offset // 8 + 3] ^= 1 << 40
        elif fault == "foreign":
            words[0] = 0
        elif fault == "dead":
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(rank.main(sys.argv[1:], FaultyRank))
