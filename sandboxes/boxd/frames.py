"""The frames of a box's stream: numbers that both ends share. The layouts are told in `wire.py`."""

VERSION = 1
HEADER_BYTES = 9
"""kind: 1, id: 4, size of the payload: 4; all numbers are unsigned and big-endian."""

EXEC, STDIN, KILL, FILE, CHUNK, END, GET, PING, PEEK, RUN = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
READY, RESULT, ACK, ERROR, PONG, PEEKED, TURN = 65, 66, 67, 68, 69, 70, 71

HAS_STDIN, IS_SESSION = 1, 2
TIMED_OUT, OOM = 1, 2

CHUNK_BYTES = 64 * 1024
STDIN_ACK_BYTES = 128 * 1024
MAX_FILES = 10_000
