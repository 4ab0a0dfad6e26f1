"""The record of a run on disk: one writer, lazy readers, plain files.

`writer.RunWriter` and `reader.RunReader` are the two ends; `layout` names the files between them.
"""
