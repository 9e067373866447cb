"""The measurement: runs the two kernels on the same tokens."""

import logging
import os

# Nothing is ever fetched, and this must be said before the libraries are imported that ask.
os.environ["HF_HUB_OFFLINE"] = "1"
# Threads that wait for each other sleep: kernel servers and workers share their machine's cores,
# and spinning there costs both of them many times what it saves one alone.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Workers report their own progress; the bars of the libraries below them would be drawn into it.
os.environ.setdefault("TQDM_DISABLE", "1")
# torchao, where it is installed, tells of GPU extensions it cannot load whenever transformers looks for it.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
