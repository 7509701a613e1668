# cython: language_level=3
"""Rows of the log -> what stores are sent: lines of COPY, and arguments of Redis' script. It decides nothing.

It knows events without an old row, and flat rows and keys as capture writes them. Whatever else comes, malformed bytes
too, it leaves: the Python code of ``jobs.executor.decode`` and of the sinks' writers takes it then, and is what this
code is compared with, byte for byte.

Texts are ``bytes``, which end in a zero byte that no JSON holds: reading stops there at the latest.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy, strlen, strncmp

cdef extern from "Python.h":
    double PyOS_string_to_double(const char* text, char** end, void* overflow) except? -1.0
    char* PyOS_double_to_string(double value, char format, int precision, int flags, int* kind) except NULL
    int Py_DTSF_ADD_DOT_0
    void* memrchr(const void* text, int byte, size_t size)

cdef enum:
    _TAG_END = 45  # of an event
    _VALUE_MAX = 32  # the most bytes of COPY's text for a number, or for a column that is missing
    _DIGITS_SURE = 18  # so many surely fit 64 bits
    _ID_MAX = 512  # the most bytes of a document's id that isn't hashed
    _KEY_COLUMNS_MAX = 16

ctypedef const char* Text
ctypedef char* Output

cdef Text no_old_row = b'","before":null,"after":'
cdef Text source_start = b',"source":'

# Whether a byte of JSON's or our own text stands for itself in COPY's text and in RESP.
cdef bint[256] is_plain

for _code in range(256):
    is_plain[_code] = _code >= 32 and _code not in b'"\\'

cdef inline Output put(Output to, Text text, Py_ssize_t size) noexcept:
    memcpy(to, text, size)
    return to + size

cdef inline Text digits_end(Text at) noexcept:
    while b"0" <= at[0] <= b"9":
        at += 1
    return at

cdef int64_t hex_number(Text at) noexcept:
    """Of eight digits; -1 for anything else."""
    cdef int64_t number = 0
    cdef Text end = at + 8
    while at < end:
        if b"0" <= at[0] <= b"9":
            number = number << 4 | (at[0] - 48)
        elif b"a" <= at[0] <= b"f":
            number = number << 4 | (at[0] - 87)
        else:
            return -1
        at += 1
    return number

cdef bint is_utf8(Text text, Py_ssize_t size) except -1:
    try:
        PyUnicode_DecodeUTF8(text, size, NULL)
    except UnicodeDecodeError:
        return False
    return True

def take_rows(list values not None, Py_ssize_t start, bytes source not None, list rows not None):
    """Append the rows' JSON of the events from ``start`` on; the index of the first that Python has to look at.

    ``source`` is what these events' ``source`` begins with, its name included, up to the end of their schema id.
    """
    cdef Py_ssize_t index = start, size, begin = _TAG_END + strlen(no_old_row), end
    cdef Text value, brace
    while index < len(values):
        each = values[index]
        if not PyBytes_CheckExact(each):
            break
        value, size = PyBytes_AS_STRING(each), PyBytes_GET_SIZE(each)
        if size < begin + 2 or memcmp(value + _TAG_END, no_old_row, strlen(no_old_row)) != 0 or value[begin] != b"{":
            break
        # The last brace that opens: where it isn't that of ``source``, a name in there has one.
        brace = <Text> memrchr(value, b"{", size)
        end = brace - value - strlen(source_start)
        if end <= begin or size - end < len(source):
            break
        if memcmp(value + end, PyBytes_AS_STRING(source), len(source)) != 0:
            break
        rows.append(PyBytes_FromStringAndSize(value + begin, end - begin))
        index += 1
    return index

cdef class LineKernel:
    """Writes rows as lines of COPY. ``names`` are the JSON of the columns' names, in the order of the columns."""

    cdef list names
    cdef Py_ssize_t names_size, buffer_size
    cdef Output buffer, to
    cdef Text at
    cdef unsigned char bits

    def __cinit__(self, names):
        self.names = [b"," + name + b":" for name in names]

    def __dealloc__(self):
        free(self.buffer)

    def lines(
        self, list keys not None, list tags not None, list rows not None, list ends not None, Py_ssize_t start,
        Py_ssize_t stop,
    ):
        """The lines of the rows from ``start`` on, and the index of the first that Python has to look at, or ``stop``.

        A deletion has its key. Behind the columns come the tag and what ``ends`` has for the row.
        """
        cdef Py_ssize_t index = start, used, size
        cdef Text end
        self.to = self.buffer
        while index < stop:
            used = self.to - self.buffer
            text = keys[index] if rows[index] is None else rows[index]
            is_whole = PyBytes_CheckExact(text) and self.put_object(text) and self.put_tag(tags[index])
            if not is_whole:
                self.to = self.buffer + used
                break
            end = PyUnicode_AsUTF8AndSize(ends[index], &size)
            self.reserve(size + 1)
            self.to = put(put(self.to, end, size), b"\n", 1)
            index += 1
        return PyBytes_FromStringAndSize(self.buffer, self.to - self.buffer), index

    cdef int reserve(self, Py_ssize_t size) except -1:
        """Make room for so many bytes behind what is there."""
        cdef Py_ssize_t used = self.to - self.buffer
        cdef Output larger
        if used + size > self.buffer_size:
            larger = <Output> realloc(self.buffer, 2 * (used + size))
            if larger == NULL:
                raise MemoryError
            self.buffer, self.buffer_size = larger, 2 * (used + size)
            self.to = larger + used
        return 0

    cdef bint put_object(self, bytes text) except -1:
        """The columns that an object has, in their order, each with a tab behind it; the others are null.

        False for what Python has to look at, which may have been written in part.
        """
        cdef Py_ssize_t size = PyBytes_GET_SIZE(text), name_size
        cdef Text begin = PyBytes_AS_STRING(text), name
        cdef char separator = b"{"
        self.reserve(size + (_VALUE_MAX + 1) * len(self.names))
        self.at, self.bits = begin, 0
        for each in self.names:
            name, name_size = PyBytes_AS_STRING(each), PyBytes_GET_SIZE(each)
            if (
                self.at[0] == separator
                and begin + size - self.at > name_size
                and memcmp(self.at + 1, name + 1, name_size - 1) == 0
            ):
                self.at += name_size
                if not self.put_value():
                    return False
                separator = b","
            else:
                self.to = put(self.to, b"\\N", 2)
            self.to = put(self.to, b"\t", 1)
        if separator == b"{" or self.at[0] != b"}" or self.at + 1 != begin + size:
            return False
        return self.bits < 0x80 or is_utf8(begin, size)

    cdef bint put_value(self) except -1:
        if self.at[0] == b'"':
            return self.put_string()
        if strncmp(self.at, b"null", 4) == 0:
            return self.put_word(4, b"\\N")
        if strncmp(self.at, b"true", 4) == 0:
            return self.put_word(4, b"t")
        if strncmp(self.at, b"false", 5) == 0:
            return self.put_word(5, b"f")
        return self.put_number()

    cdef bint put_word(self, int size, Text meaning) noexcept:
        self.at += size
        self.to = put(self.to, meaning, strlen(meaning))
        return True

    cdef bint put_string(self) noexcept:
        """JSON and COPY share four escapes. Those with a code are left."""
        cdef Text at = self.at + 1, plain
        cdef Output to = self.to
        while True:
            plain = at
            while is_plain[<unsigned char> at[0]]:
                self.bits |= <unsigned char> at[0]
                at += 1
            to = put(to, plain, at - plain)
            if at[0] == b'"':
                self.at, self.to = at + 1, to
                return True
            if at[0] != b"\\":
                return False
            if at[1] == b'"' or at[1] == b"/":
                to[0] = at[1]
                to += 1
            elif at[1] == b"\\" or at[1] == b"n" or at[1] == b"r" or at[1] == b"t":
                to = put(to, at, 2)
            else:
                return False
            at += 2

    cdef bint put_number(self) except -1:
        """A number without an exponent, as Python prints it."""
        cdef Text digits = self.at + (self.at[0] == b"-"), end = digits_end(digits)
        cdef char* text
        cdef char* stop
        cdef double number
        if end == digits or (digits[0] == b"0" and end - digits > 1):
            return False
        if end[0] != b".":
            if end - digits > _DIGITS_SURE or (digits[0] == b"0" and digits != self.at):
                return False
            self.to = put(self.to, self.at, end - self.at)
            self.at = end
            return True
        number = PyOS_string_to_double(self.at, &stop, NULL)
        if stop == end + 1 or stop != digits_end(end + 1) or not isfinite(number):
            return False
        text = PyOS_double_to_string(number, b"r", 0, Py_DTSF_ADD_DOT_0, NULL)
        self.to = put(self.to, text, strlen(text))
        PyMem_Free(text)
        self.at = stop
        return True

    cdef bint put_tag(self, tag) except -1:
        """A tag with a tab behind it; False for one in which something is to be escaped."""
        cdef Py_ssize_t size, index
        cdef Text at = PyUnicode_AsUTF8AndSize(tag, &size)
        for index in range(size):
            if not is_plain[<unsigned char> at[index]]:
                return False
        self.reserve(size + 1)
        self.to = put(put(self.to, at, size), b"\t", 1)
        return True

cdef struct Part:
    Text at
    Py_ssize_t size

cdef Text find_value(Text at, Part* value, unsigned char* bits) noexcept:
    """Where a key's value is that begins here, as text; returns what is behind it, NULL for what Python has to look at.

    ``bits`` gets those of the text's bytes.
    """
    cdef Text end
    if at[0] == b'"':
        end = value.at = at + 1
        while is_plain[<unsigned char> end[0]]:
            bits[0] |= <unsigned char> end[0]
            end += 1
        value.size = end - value.at
        return end + 1 if end[0] == b'"' else NULL
    value.at = at
    at += at[0] == b"-"
    end = digits_end(at)
    value.size = end - value.at
    if end == at or end - at > _DIGITS_SURE or (at[0] == b"0" and value.size > 1):
        return NULL
    return end

cdef bint find_key(object key, list starts, Part* values) except -1:
    """Where the values of a key are, as text; ``starts`` have what comes before each. False for what Python has to
    look at."""
    cdef Py_ssize_t column, size
    cdef Text at, end
    cdef unsigned char bits = 0
    if not PyBytes_CheckExact(key):
        return False
    at = PyBytes_AS_STRING(key)
    end = at + PyBytes_GET_SIZE(key)
    for column in range(len(starts)):
        start = <bytes> starts[column]
        size = PyBytes_GET_SIZE(start)
        if end - at <= size or memcmp(at, PyBytes_AS_STRING(start), size) != 0:
            return False
        at = find_value(at + size, &values[column], &bits)
        if at == NULL:
            return False
    if at[0] != b"}" or at + 1 != end:
        return False
    return bits < 0x80 or is_utf8(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))

cdef bint is_one_part(Part* value) noexcept:
    """Whether a value is a part of a name as it is: colons are between these."""
    return memchr(value.at, b":", value.size) == NULL and memchr(value.at, b"%", value.size) == NULL

def take_arguments(
    list keys not None, list tags not None, list rows not None, Py_ssize_t start, Py_ssize_t stop, *,
    list key_starts not None, bytes prefix not None, Py_ssize_t bytes_max, list names not None, list values not None,
):
    """Append the names of rows, and their tags with the JSON behind them, as Redis' script takes both.

    ``key_starts`` have what comes before each column's value in the JSON of a key. Returns the index of the first row
    that Python has to look at, that is beyond ``bytes_max``, or ``stop``; and the bytes of the rows' JSON.
    """
    cdef Py_ssize_t index = start, size = 0, row_size, tag_size, name_size, column, columns = len(key_starts)
    cdef Text tag
    cdef Part[_KEY_COLUMNS_MAX] key
    cdef Output to
    if not 0 < columns <= _KEY_COLUMNS_MAX:
        return start, 0
    while index < stop:
        row = rows[index]
        if row is not None and not PyBytes_CheckExact(row):
            break
        row_size = 0 if row is None else PyBytes_GET_SIZE(row)
        if size + row_size > bytes_max or not find_key(keys[index], key_starts, key):
            break
        name_size = len(prefix) + columns - 1
        for column in range(columns):
            if columns > 1 and not is_one_part(&key[column]):
                return index, size
            name_size += key[column].size
        tag = PyUnicode_AsUTF8AndSize(tags[index], &tag_size)
        name = PyBytes_FromStringAndSize(NULL, name_size)
        to = put(PyBytes_AS_STRING(name), PyBytes_AS_STRING(prefix), len(prefix))
        for column in range(columns):
            if column:
                to = put(to, b":", 1)
            to = put(to, key[column].at, key[column].size)
        value = PyBytes_FromStringAndSize(NULL, tag_size + row_size)
        to = put(PyBytes_AS_STRING(value), tag, tag_size)
        if row is not None:
            put(to, PyBytes_AS_STRING(row), row_size)
        names.append(name)
        values.append(value)
        size += row_size
        index += 1
    return index, size

def take_documents(
    list keys not None, list tags not None, list rows not None, Py_ssize_t start, Py_ssize_t stop, *,
    bytes key_start not None, bytes head not None, bytes middle not None, str transaction not None,
    uint64_t first_version, uint64_t seq_max, Py_ssize_t bytes_max, list lines not None,
):
    """Append rows as lines of a bulk request: ``head``, id, version, ``middle``, tag, and the rest of the row's JSON.

    Returns the index of the first row that Python has to look at, that is of another transaction or beyond
    ``bytes_max``, or ``stop``; and the bytes of the lines.
    """
    cdef Py_ssize_t index = start, total = 0, size, tag_size, known_size
    cdef Text tag, known = PyUnicode_AsUTF8AndSize(transaction, &known_size)
    cdef list key_starts = [key_start]
    cdef Part key
    cdef Output to
    cdef char[24] version
    cdef int64_t seq
    while index < stop:
        row = rows[index]
        tag = PyUnicode_AsUTF8AndSize(tags[index], &tag_size)
        if tag_size != known_size + 8 or memcmp(tag, known, known_size) != 0 or not PyBytes_CheckExact(row) or not row:
            break
        if not find_key(keys[index], key_starts, &key) or not 0 < key.size <= _ID_MAX:
            break
        seq = hex_number(tag + known_size)
        if seq < 0 or strncmp(key.at, b"sha256:", 7) == 0:
            break
        snprintf(version, sizeof(version), b"%llu", <unsigned long long> (first_version + min(<uint64_t> seq, seq_max)))
        size = len(head) + key.size + 12 + strlen(version) + len(middle) + tag_size + 2 + PyBytes_GET_SIZE(row)
        if total + size > bytes_max:
            break
        line = PyBytes_FromStringAndSize(NULL, size)
        to = put(PyBytes_AS_STRING(line), PyBytes_AS_STRING(head), len(head))
        to = put(put(to, key.at, key.size), b'","version":', 12)
        to = put(put(to, version, strlen(version)), PyBytes_AS_STRING(middle), len(middle))
        to = put(put(to, tag, tag_size), b'",', 2)
        put(put(to, PyBytes_AS_STRING(row) + 1, PyBytes_GET_SIZE(row) - 1), b"\n", 1)
        lines.append(line)
        total += size
        index += 1
    return index, total
