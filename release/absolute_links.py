"""Make the links and pictures of README.md absolute: an index of packages shows the page without
the files beside it.

    python release/absolute_links.py https://github.com/OWNER/attsvm v0.3.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
_TARGET = re.compile(r"""(?P<before>\]\(|(?:src|srcset)=")(?P<path>(?!https?:|\#|mailto:)[^)"]+)""")


def absolute(text: str, repository: str, tag: str) -> str:
    """The page with the relative targets of its links and pictures at this tag of the repository:
    pictures as files, everything else as pages.
    """

    def replace(match: re.Match[str]) -> str:
        path = match["path"]
        kind = "raw" if path.endswith((".png", ".svg")) else "blob"
        return f"{match['before']}{repository}/{kind}/{tag}/{path}"

    return _TARGET.sub(replace, text)


if __name__ == "__main__":
    README.write_text(absolute(README.read_text(encoding="utf-8"), *sys.argv[1:]), encoding="utf-8")
