"""The frames of a box's stream: numbers that both ends share. The layouts are told in `wire.py`."""

VERSION = 1
HEADER_BYTES = 9
"""kind: 1, id: 4, size of the payload: 4; all numbers are unsigned and big-endian."""

EXEC, STDIN, KILL, FILE, CHUNK, END, GET, PING = 1, 2, 3, 4, 5, 6, 7, 8
READY, RESULT, ACK, ERROR, PONG = 65, 66, 67, 68, 69

HAS_STDIN = 1
TIMED_OUT, OOM = 1, 2

CHUNK_BYTES = 64 * 1024
STDIN_ACK_BYTES = 128 * 1024
MAX_FILES = 10_000
