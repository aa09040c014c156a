"""One thread a test process: xdist runs several, and results must not depend on the number anyway."""

import torch

torch.set_num_threads(1)
