"""Structural tags: free text in which triggers begin tags, whose content has a form."""

from corosrv.formats.structured.tags.convert import tag_rules
from corosrv.formats.structured.tags.formats import StructuralTag, read_tag

__all__ = ["StructuralTag", "read_tag", "tag_rules"]
