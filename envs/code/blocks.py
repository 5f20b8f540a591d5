"""Fenced blocks of a text as Markdown has them: what a block begins with does not end another one."""

from __future__ import annotations

import re
from collections.abc import Collection

_FENCE = re.compile(r"[ \t]*(`{3,})[ \t]*([^`\s]*)[^`]*")


def last_block(text: str, languages: Collection[str]) -> str | None:
    """The last closed block in one of the languages; in a text without any, the last of no language; else None."""
    named = unnamed = None
    fence, language, lines = "", "", list[str]()
    for line in text.replace("\r\n", "\n").split("\n"):
        match = _FENCE.fullmatch(line)
        if match and not fence:
            fence, language, lines = match[1], match[2].lower(), []
        elif match and fence and len(match[1]) >= len(fence) and line.strip() == match[1]:
            body = "".join(f"{line}\n" for line in lines)
            if language in languages:
                named = body
            elif not language:
                unnamed = body
            fence = ""
        else:
            lines.append(line)
    return unnamed if named is None else named
