"""``python -m fastlbbnn.paper.worker JOB THREADS``: one run, in a process of its own."""

from __future__ import annotations

import json
import sys

import torch

from .jobs import Job
from .running import load_data, perform


def main() -> None:
    job, threads = Job(**json.loads(sys.argv[1])), int(sys.argv[2])
    torch.set_num_threads(threads)
    perform(job, load_data(job.dataset, job.root), progress=False)


if __name__ == "__main__":
    main()
