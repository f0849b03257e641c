"""The operators in plain PyTorch, in float64 on request, and in dense algebra: the oracle.

It uses nothing else of the package, and nothing else of the package uses it.
"""

from .dense import acceptance_rate as acceptance_rate
from .dense import cold_mass as cold_mass
from .dense import drafter_rows as drafter_rows
from .dense import exact_rdk as exact_rdk
from .dense import exact_redistribute as exact_redistribute
from .dense import first_order_rdk as first_order_rdk
from .dense import output_distribution as output_distribution
from .dense import residual as residual
from .dense import with_kept_mass as with_kept_mass
from .operators import *  # noqa: F403  its __all__
from .overlap import overlap as overlap
from .overlap import overlap_backward as overlap_backward
from .random import ACCEPT as ACCEPT
from .random import BLOCK as BLOCK
from .random import BONUS as BONUS
from .random import CHUNK as CHUNK
from .random import DIRECT as DIRECT
from .random import DRAFT as DRAFT
from .random import RESIDUAL as RESIDUAL
from .random import STEP as STEP
from .random import TRIES as TRIES
from .random import Trace as Trace
from .random import philox as philox
from .random import uniform as uniform
from .shards import sum_shard as sum_shard
from .shards import verify_shard as verify_shard
from .step import draft_step as draft_step
from .step import verify_step as verify_step
from .truncation import Limits as Limits
from .verify_tree import verify_tree as verify_tree
