"""torch.ops.rdk.* under names that type checkers know; the schemas are in docs/design.md."""

import torch

redistribute = torch.ops.rdk.redistribute
draft = torch.ops.rdk.draft
verify = torch.ops.rdk.verify
gather_logits = torch.ops.rdk.gather_logits
step_seeds = torch.ops.rdk.step_seeds
