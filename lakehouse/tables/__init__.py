"""The pipelines that ship."""
