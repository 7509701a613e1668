# cython: language_level=3
"""Rows of the stream and of copies -> their events' keys and values, compiled. It decides nothing.

It knows inserts, updates without an old row, and lines of COPY, whose values are all there and of kinds that need no
thought. Whatever else comes, malformed bytes too, it gives back untouched: the Python code of ``cdc.capture.assembler``
or ``cdc.protocol.copy_text``, and ``cdc.event_format.encode``, takes it then, and is what this code is compared with,
byte for byte.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcpy, memmove, strlen

import orjson
VERBATIM, QUOTED, TEXT, BOOL, FLOAT, TIMESTAMP, TIMESTAMPTZ = range(7)
"""The kinds of columns; ``cdc.event_format.compiled`` says which types have them."""

cdef enum:
    _VERBATIM, _QUOTED, _TEXT, _BOOL, _FLOAT, _TIMESTAMP, _TIMESTAMPTZ
    # Where a frame has the WAL position, and its message kind, relation, "N", number of columns, the first value.
    _WAL_START = 1
    _KIND = 25
    _RELATION = 26
    _NEW = 30
    _COLUMNS = 31
    _VALUES = 33
    _ESCAPED = 6  # the most bytes of JSON for a byte of a text,
    _AROUND = 8  # beside them for each value,
    _NUMBERS = 160  # and for an event's literals, tag and LSN
    _FRAME_MAX = 65536  # the buffer is many times as large, and the gain lies in short rows

ctypedef const char* Text
ctypedef char* Output

cdef struct Column:
    int kind
    Text name  # with a comma before it and a colon after it
    Py_ssize_t name_size
    Text value  # in the frame, the line or what it was unescaped to; NULL for a null
    Py_ssize_t size
    Text json  # in the buffer
    Py_ssize_t json_size

# How JSON escapes a byte; the size is 0 for what stands for itself.
cdef char[256][6] escapes
cdef unsigned char[256] escape_sizes

for _code in range(128):
    _escaped = orjson.dumps(chr(_code))[1:-1]
    escape_sizes[_code] = 0 if _escaped == bytes([_code]) else len(_escaped)
    for _index, _byte in enumerate(_escaped):
        escapes[_code][_index] = _byte

# What stands after a backslash in COPY's text -> the byte that is meant; 0 for what Python has to look at.
cdef char[256] meant

for _code, _byte in zip(b"bfnrtv\\", b"\b\f\n\r\t\v\\"):
    meant[_code] = _byte

cdef inline uint64_t number(Text at, int size) noexcept:
    cdef uint64_t value = 0
    cdef int index
    for index in range(size):  # network byte order
        value = value << 8 | <unsigned char> at[index]
    return value

cdef inline Output put(Output to, Text text, Py_ssize_t size) noexcept:
    memcpy(to, text, size)
    return to + size

cdef inline Output put_literal(Output to, Text text) noexcept:
    return put(to, text, strlen(text))

cdef inline Output put_bytes(Output to, bytes text) noexcept:
    return put(to, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))

cdef Output put_decimal(Output to, uint64_t value) noexcept:
    cdef char[20] digits
    cdef int start = 20
    while start == 20 or value:
        start -= 1
        digits[start] = 48 + value % 10
        value //= 10
    return put(to, digits + start, 20 - start)

cdef Output put_text(Output to, Text text, Py_ssize_t size) except? NULL:
    cdef Py_ssize_t index, plain = 0
    cdef unsigned char byte, all_bits = 0
    to = put_literal(to, b'"')
    for index in range(size):
        byte = text[index]
        all_bits |= byte
        if escape_sizes[byte]:
            to = put(put(to, text + plain, index - plain), escapes[byte], escape_sizes[byte])
            plain = index + 1
    if all_bits & 0x80:
        try:
            PyUnicode_DecodeUTF8(text, size, NULL)
        except UnicodeDecodeError:
            return NULL
    return put_literal(put(to, text + plain, size - plain), b'"')

cdef Output put_timestamp(Output to, Text text, Py_ssize_t size, bint in_utc) noexcept:
    cdef Output at = put_literal(to, b'"'), end = put(at, text, size), space = <Output> memchr(at, b" ", size)
    if space != NULL:
        space[0] = b"T"
    while in_utc and end - at >= 3:
        if at[0] == b"+" and at[1] == b"0" and at[2] == b"0":
            at[0] = b"Z"
            end -= 2
            memmove(at + 1, at + 3, end - at - 1)
            break
        at += 1
    return put_literal(end, b'"')

cdef Output put_value(Output to, int kind, Text text, Py_ssize_t size) except? NULL:
    """The JSON of a value; NULL for what Python has to look at."""
    if text == NULL:
        return put_literal(to, b"null")
    if kind == _TEXT:
        return put_text(to, text, size)
    if kind == _TIMESTAMP or kind == _TIMESTAMPTZ:
        return put_timestamp(to, text, size, kind == _TIMESTAMPTZ)
    if kind == _BOOL and size == 1 and (text[0] == b"t" or text[0] == b"f"):
        return put_literal(to, b"true" if text[0] == b"t" else b"false")
    if kind == _BOOL or (kind == _FLOAT and size == 0):
        return NULL
    if kind == _FLOAT and size == 2 and text[0] == b"-" and text[1] == b"0":
        return put_literal(to, b"-0.0")
    if kind == _VERBATIM or (kind == _FLOAT and b"0" <= text[size - 1] <= b"9"):
        return put(to, text, size)
    return put_literal(put(put_literal(to, b'"'), text, size), b'"')

cdef class RowKernel:
    """Encodes rows of one table shape. ``columns`` are (JSON of the name, kind); ``key`` are indexes in key order."""

    cdef Column* columns
    cdef int count
    cdef tuple key
    cdef list names
    cdef Py_ssize_t names_size, buffer_size, plain_size
    cdef Output buffer, plain

    def __cinit__(self, columns, tuple key):
        if not columns or len(set(key)) != len(key) or not set(range(len(columns))).issuperset(key):
            raise ValueError("columns or key make no sense")
        self.count, self.key = len(columns), key
        self.columns = <Column*> calloc(self.count, sizeof(Column))
        if self.columns == NULL:
            raise MemoryError
        self.names = [b"," + name + b":" for name, _ in columns]
        self.names_size = sum(map(len, self.names))
        for index, (_, kind) in enumerate(columns):
            self.columns[index].kind, self.columns[index].name = kind, PyBytes_AS_STRING(self.names[index])
            self.columns[index].name_size = PyBytes_GET_SIZE(self.names[index])

    def __dealloc__(self):
        free(self.columns)
        free(self.buffer)
        free(self.plain)

    def encode(
        self, first, receive, *, uint32_t relation, bint updates, bytes prefix not None, uint64_t seq,
        bytes source not None, bytes time not None, Py_ssize_t text_max, Py_ssize_t rows_max, Py_ssize_t bytes_max,
    ):
        """The frames ``first``, ``receive()``, ... -> ([(key, value)], the frame that comes next, bytes of the values).

        It ends at a frame that is none of these rows, that has values of more than ``text_max`` bytes or is unusual; at
        None; and, without a next frame, with ``rows_max`` rows or ``bytes_max`` bytes. ``seq`` is the first row's.
        """
        cdef Py_buffer view
        cdef Py_ssize_t size = 0
        cdef char op
        cdef uint64_t lsn
        pairs, frame = [], first
        while frame is not None and seq <= 0xFFFFFFFF:
            pair = None
            PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
            try:
                if self.find(<Text> view.buf, view.len, relation, updates, text_max):
                    op = b"c" if (<Text> view.buf)[_KIND] == b"I" else b"u"
                    lsn = number(<Text> view.buf + _WAL_START, 8)
                    pair = self.pair(op, view.len, prefix, seq, source, lsn, time)
            finally:
                PyBuffer_Release(&view)
            if pair is None:
                break
            pairs.append(pair)
            seq += 1
            size += PyBytes_GET_SIZE(pair[1])
            if len(pairs) >= rows_max or size >= bytes_max:
                return pairs, None, size
            frame = receive()
        return pairs, frame, size

    def encode_copied(
        self, list lines not None, Py_ssize_t start, *, bytes prefix not None, bytes source not None, uint64_t lsn,
        bytes time not None,
    ):
        """Lines of a COPY from ``start`` on -> ([(key, value)], the index of the next line, bytes of the values).

        It ends at the end, or at a line that is unusual. The events are those of a snapshot, with ``seq`` 0.
        """
        cdef Py_buffer view
        cdef Py_ssize_t size = 0, index = start, count = len(lines)
        pairs = []
        while index < count:
            pair = None
            PyObject_GetBuffer(lines[index], &view, PyBUF_SIMPLE)
            try:
                if self.find_copied(<Text> view.buf, view.len):
                    pair = self.pair(b"r", view.len, prefix, 0, source, lsn, time)
            finally:
                PyBuffer_Release(&view)
            if pair is None:
                break
            pairs.append(pair)
            size += PyBytes_GET_SIZE(pair[1])
            index += 1
        return pairs, index, size

    cdef bint find_copied(self, Text line, Py_ssize_t size) except -1:
        """Note where a line's values are, unescaped; False for what isn't exactly one row, whole."""
        cdef Py_ssize_t at = 0, end = size - 1
        cdef Output to
        cdef Text tab
        cdef Column* column
        cdef int index
        if not 1 <= size <= _FRAME_MAX or line[end] != b"\n":
            return False
        if memchr(line, b"\\", end) == NULL:
            for index in range(self.count):
                column = &self.columns[index]
                tab = <Text> memchr(line + at, b"\t", end - at)
                if (tab == NULL) != (index == self.count - 1):
                    return False
                column.value, column.size = line + at, (end if tab == NULL else tab - line) - at
                at += column.size + 1
            return True
        if size > self.plain_size:
            to = <Output> realloc(self.plain, size)
            if to == NULL:
                raise MemoryError
            self.plain, self.plain_size = to, size
        to = self.plain
        for index in range(self.count):
            column = &self.columns[index]
            if end - at >= 2 and line[at] == b"\\" and line[at + 1] == b"N":
                column.value = NULL
                at += 2
            else:
                column.value = to
                while at < end and line[at] != b"\t":
                    to[0] = line[at]
                    if line[at] == b"\\":
                        at += 1
                        to[0] = meant[<unsigned char> line[at]]  # at the end that is the newline
                        if to[0] == 0:
                            return False
                    to += 1
                    at += 1
                column.size = to - column.value
            if (at == end) != (index == self.count - 1) or (at < end and line[at] != b"\t"):
                return False
            at += 1
        return True

    cdef bint find(self, Text frame, Py_ssize_t size, uint32_t relation, bint updates, Py_ssize_t text_max) noexcept:
        """Note where a row's values are; False for what isn't exactly one row, whole, with all of its values."""
        cdef Py_ssize_t at = _VALUES, total = 0
        cdef uint64_t length
        cdef int index
        if not _VALUES <= size <= _FRAME_MAX or frame[0] != b"w" or number(frame + _RELATION, 4) != relation:
            return False
        if (frame[_KIND] != b"I" and not (updates and frame[_KIND] == b"U")) or frame[_NEW] != b"N":
            return False
        if number(frame + _COLUMNS, 2) != <uint64_t> self.count:
            return False
        for index in range(self.count):
            self.columns[index].value = NULL
            if at < size and frame[at] == b"n":
                at += 1
                continue
            if size - at < 5 or frame[at] != b"t":
                return False
            at, length = at + 5, number(frame + at + 1, 4)
            if length > <uint64_t> (size - at):
                return False
            self.columns[index].value, self.columns[index].size = frame + at, <Py_ssize_t> length
            at += length
            total += length
        return at == size and total <= text_max

    cdef tuple pair(
        self, char op, Py_ssize_t size, bytes prefix, uint64_t seq, bytes source, uint64_t lsn, bytes time
    ):
        """The key and value of the row that was found; None for one that Python has to look at.

        Its texts have at most ``size`` bytes.
        """
        cdef Py_ssize_t row_max = _ESCAPED * size + self.names_size + _AROUND * self.count
        cdef Py_ssize_t needed = 2 * row_max + _NUMBERS + len(prefix) + len(source) + len(time)
        cdef Output to, start
        cdef Column* column
        cdef int index
        if needed > self.buffer_size:
            to = <Output> realloc(self.buffer, needed)
            if to == NULL:
                raise MemoryError
            self.buffer, self.buffer_size = to, needed
        to = put_literal(self.buffer, b'{"op":"')
        to[0] = op
        to = put_bytes(put_literal(to + 1, b'","tag":"'), prefix)
        for index in range(8):
            to[index] = b"0123456789abcdef"[seq >> (28 - 4 * index) & 15]
        start = to = put_literal(to + 8, b'","before":null,"after":')
        for index in range(self.count):
            column = &self.columns[index]
            column.json = to = put(to, column.name, column.name_size)
            to = put_value(to, column.kind, column.value, column.size)
            if to == NULL:
                return None
            column.json_size = to - column.json
        start[0] = b"{"
        to = put_bytes(put_literal(to, b'},"source":'), source)
        to = put_decimal(to, lsn)
        to = put_literal(put_bytes(put_literal(to, b'},"ts_ms":'), time), b"}")
        value = PyBytes_FromStringAndSize(self.buffer, to - self.buffer)
        start = to
        for index in self.key:
            column = &self.columns[index]
            if column.value == NULL:
                return None
            to = put(put(to, column.name, column.name_size), column.json, column.json_size)
        to = put_literal(to, b"}") if self.key else put_literal(to, b"{}")
        start[0] = b"{"
        return PyBytes_FromStringAndSize(start, to - start), value
