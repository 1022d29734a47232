"""Tests of numbers that random draws decide."""

import pytest
import torch

# Truncated normal numbers, which ensembles begin with, are others in older releases of PyTorch.
same_draws = pytest.mark.skipif(
    torch.__version__ < (2, 13), reason="PyTorch before 2.13 draws other truncated normal numbers"
)
