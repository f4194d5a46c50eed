"""The loops of an answer, which numba compiles to machine code: softmax, votes, sums, the best rows, words and trees.

    p = softmax(q K^T / tau) [lambda Y; (1 - lambda) I]        over the b nearest keys (RAE-XMC, Eq. 5 and 7)

The loops do not hold Python's lock, so several threads compute at once. Sums are in the order of the keys, so equal
inputs give equal bits. All loops are in one file, because numba's cache notices a change of this file only.
`recollect/core/compiling.py` compiles them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Int8, UInt16, UInt32, UInt64
from numba import boolean, float32, float64, int8, int16, int32, int64, types, uint16, uint32, uint64

from recollect.core.bundle.values import Rows, ValueArrays
from recollect.core.compiling import Loop
from recollect.core.compiling import compiled as _compiled
from recollect.core.compiling import inlined as _inlined


def _array(dtype: Any, dimensions: int = 1) -> Any:
    """The type of an array that a loop only reads."""
    return types.Array(dtype, dimensions, "C", readonly=True)


_tuple_of: Any = types.Tuple
# A loop takes arrays that belong together as one tuple, whose parts its caller names (`Values.arrays`, for example).
# numba does not accept arrays that can be written in place of those that are only read inside of a named tuple.
# `Rows` and `ValueArrays`:
_LABELS_OF_ROWS = _tuple_of((_array(int64), _array(int32)) * 2)
_WORDS_OF_ROWS = _tuple_of((_array(int64),) * 4)
_VALUES = _tuple_of((_LABELS_OF_ROWS, _array(boolean), int64))

_NEIGHBOURS = (_array(float32, 2), _array(int64, 2))


@_compiled(*_NEIGHBOURS, *_NEIGHBOURS, int64, int64)
def merge(
    similarities: Float[np.ndarray, "query first"],
    keys: Int[np.ndarray, "query first"],
    other_similarities: Float[np.ndarray, "query second"],
    other_keys: Int[np.ndarray, "query second"],
    shift: int,
    most: int,
) -> tuple[Float[np.ndarray, "query merged"], Int[np.ndarray, "query merged"]]:
    """Merge two lists of keys in order of falling similarity into the best keys of both; -1 is a missing key.

    Args:
        keys: The keys of the first list. At equal similarity, they come before those of the second list.
        shift: This number is added to the keys of the second list.
    """
    most = min(most, keys.shape[1] + other_keys.shape[1])
    merged = np.empty((keys.shape[0], most), dtype=np.float32)
    merged_keys = np.empty((keys.shape[0], most), dtype=np.int64)
    for query in range(keys.shape[0]):
        first, second = 0, 0
        for slot in range(most):
            is_second = first == keys.shape[1] or (
                second < other_keys.shape[1] and other_similarities[query, second] > similarities[query, first]
            )
            if is_second:
                key = other_keys[query, second]
                merged[query, slot], merged_keys[query, slot] = other_similarities[query, second], key
                merged_keys[query, slot] += shift if key >= 0 else 0
                second += 1
            else:
                merged[query, slot], merged_keys[query, slot] = similarities[query, first], keys[query, first]
                first += 1
    return merged, merged_keys


# The weight of a key that words found is proportional to this power of its similarity. On library titles, the powers 1
# to 4 differed by less than a point of nDCG@5 after mixing.
_POWER = 3


@_inlined
def _word_logit(similarity: float) -> float:
    """The logit of a key that words found."""
    return _POWER * np.log(np.float64(similarity)) if similarity > 0 else -np.inf


@_inlined
def _softmax(
    keys: Int[np.ndarray, " key"],
    logits: Float[np.ndarray, " key"],
    mapped: int,
    live_log_counts: Float[np.ndarray, " live"],
    share: float,
) -> None:
    """Replace the logits of present keys by weights, and others by 0; the weights sum to `share`."""
    greatest, total = -np.inf, 0.0
    for slot in range(len(keys)):
        live = keys[slot] - mapped
        if 0 <= live < len(live_log_counts):
            logits[slot] += live_log_counts[live]
        if keys[slot] >= 0:
            greatest = max(greatest, logits[slot])
    for slot in range(len(keys)):
        found = keys[slot] >= 0 and logits[slot] > -np.inf
        logits[slot] = np.exp(logits[slot] - greatest) if found else 0.0
        total += logits[slot]
    for slot in range(len(keys) if total > 0 else 0):
        logits[slot] = logits[slot] / total * share


@_compiled(*_NEIGHBOURS, float64, *_NEIGHBOURS, float64, int64, _array(float64))
def weigh_keys(
    similarities: Float[np.ndarray, "query near"],
    near: Int[np.ndarray, "query near"],
    temperature: float,
    word_similarities: Float[np.ndarray, "query shared"],
    shared: Int[np.ndarray, "query shared"],
    word_weight: float,
    mapped: int,
    live_log_counts: Float[np.ndarray, " live"],
) -> tuple[Int[np.ndarray, "query key"], Float[np.ndarray, "query key"]]:
    """Weigh the keys of each query: one softmax over the keys found by vectors, and one over those found by words.

    A key with count n weighs as much as n equal keys.

    Args:
        near: The keys that vectors found; -1 for a missing key.
        temperature: Tau of their softmax (RAE-XMC, Eq. 5).
        shared: The keys that words found.
        word_weight: The sum of their weights, for a query that has some of them.
        mapped: Number of instances without a count.
        live_log_counts: The logarithms of the counts of the instances after them; empty if every count is 1.

    Returns:
        The keys of both lists, and weights, which sum to 1 for every query with a key by vectors.
    """
    by_vectors, columns = near.shape[1], near.shape[1] + shared.shape[1]
    keys, weights = np.empty((near.shape[0], columns), dtype=np.int64), np.empty((near.shape[0], columns))
    for query in range(near.shape[0]):
        share = 0.0
        for slot in range(by_vectors):
            keys[query, slot] = near[query, slot]
            weights[query, slot] = np.float64(similarities[query, slot]) / temperature
        for slot in range(shared.shape[1]):
            keys[query, by_vectors + slot] = shared[query, slot]
            weights[query, by_vectors + slot] = _word_logit(word_similarities[query, slot])
            if shared[query, slot] >= 0:
                share = word_weight
        _softmax(keys[query, :by_vectors], weights[query, :by_vectors], mapped, live_log_counts, 1 - share)
        _softmax(keys[query, by_vectors:], weights[query, by_vectors:], mapped, live_log_counts, share)
    return keys, weights


@_inlined
def _row(key: int | np.int64, rows: Rows) -> Int[np.ndarray, " item"]:
    """The labels of an instance, or the words of a name."""
    offsets, items, live_offsets, live_items = rows
    mapped = len(offsets) - 1
    if key < mapped:
        return items[offsets[key] : offsets[key + 1]]
    return live_items[live_offsets[key - mapped] : live_offsets[key - mapped + 1]]


@_inlined
def _clear(table: Int[np.ndarray, " place"]) -> None:
    for place in range(len(table)):  # numba compiles an assignment to a slice in ten times as long
        table[place] = -1


@_inlined
def _table(entries: int) -> Int[np.ndarray, " place"]:
    """A hash table for at most this number of entries. A place has the number of its entry, or -1."""
    places = 16
    while places < 2 * entries:
        places *= 2
    table = np.empty(places, dtype=np.int32)
    _clear(table)
    return table


@_inlined
def _place(wanted: int | np.int64, mask: int) -> int | np.int64:
    """The first place at which a table looks for an entry."""
    place = wanted * 0x9E3779B1
    return (place ^ (place >> 16)) & mask


@_inlined
def _find(
    table: Int[np.ndarray, " place"], entries: Int[np.ndarray, " entry"], wanted: int | np.int64
) -> int | np.int64:
    """The place of an entry in a table; without such an entry, the place where it belongs."""
    mask = len(table) - 1
    place = _place(wanted, mask)
    while table[place] >= 0 and entries[table[place]] != wanted:
        place = (place + 1) & mask
    return place


@_inlined
def _entry(
    table: Int[np.ndarray, " place"], entries: Int[np.ndarray, " entry"], count: int, wanted: int | np.int64
) -> int | np.int64:
    """The number of an entry; a new entry gets the number `count`."""
    mask = len(table) - 1
    place = _place(wanted, mask)
    while table[place] >= 0:
        if entries[table[place]] == wanted:
            return np.int64(table[place])
        place = (place + 1) & mask
    table[place], entries[count] = count, wanted
    return count


@_compiled(_array(int64, 2), _array(float64, 2), float64, _VALUES, _array(boolean))
def sum_votes(
    keys: Int[np.ndarray, "query key"],
    weights: Float[np.ndarray, "query key"],
    lambda_: float,
    values: ValueArrays,
    admits: Bool[np.ndarray, " label"],
) -> tuple[Int[np.ndarray, " offset"], Int[np.ndarray, " row"], Float[np.ndarray, " row"]]:
    """Sum the votes for each label: w [lambda Y; (1 - lambda) I] (RAE-XMC, Eq. 7).

    An instance gives lambda times its weight to each of its labels, a label key 1 - lambda times its weight to its
    label.

    Args:
        keys: The keys of each query; -1 for a missing key.
        values: `Values.arrays`.
        admits: Whether each label is summed; empty means that all labels are.

    Returns:
        The labels of query i and their sums, in no particular order, are the rows `offsets[i]` to `offsets[i + 1]`.
    """
    rows, removed, labels = values
    instances = len(rows[0]) + len(rows[2]) - 2
    queries, most = keys.shape[0], 0
    offsets = np.zeros(queries + 1, dtype=np.int64)
    for query in range(queries):  # the number of votes limits the number of labels
        votes = 0
        for slot in range(keys.shape[1]):
            key = keys[query, slot]
            if key >= instances + labels:
                raise IndexError("an index found a key that the memory does not have")
            if key >= instances:
                votes += 1
            elif key >= 0:
                votes += len(_row(key, rows))
        votes = min(votes, labels)
        most = max(most, votes)
        offsets[query + 1] = offsets[query] + votes
    found, sums = np.empty(offsets[queries], dtype=np.int64), np.empty(offsets[queries])
    table = _table(most)
    stop = 0
    for query in range(queries):
        start, own = stop, found[stop:]
        _clear(table)
        for slot in range(keys.shape[1]):
            key = keys[query, slot]
            if key < 0:
                continue
            is_label = key >= instances
            share = weights[query, slot] * ((1 - lambda_) if is_label else lambda_)
            row = rows[3][:0] if is_label else _row(key, rows)
            for nth in range(1 if is_label else len(row)):
                label = key - instances if is_label else np.int64(row[nth])
                if len(removed) and removed[label] or len(admits) and not admits[label]:
                    continue
                entry = start + _entry(table, own, stop - start, label)
                if entry == stop:
                    sums[entry] = 0.0
                    stop += 1
                sums[entry] += share
        offsets[query + 1] = stop
    return offsets, found[:stop], sums[:stop]


@_compiled(_array(int64), _VALUES, _array(int64))
def find_voters(
    keys: Int[np.ndarray, " key"], values: ValueArrays, wanted: Int[np.ndarray, " wanted"]
) -> tuple[Int[np.ndarray, " vote"], Int[np.ndarray, " vote"]]:
    """The votes of some keys for the wanted labels: the label's place in `wanted`, and the key's place in `keys`.

    The arguments are those of `sum_votes`, with the keys of one query.
    """
    rows, removed, _ = values
    instances = len(rows[0]) + len(rows[2]) - 2
    table, votes = _table(len(wanted)), 0
    for nth in range(len(wanted)):
        table[_find(table, wanted, wanted[nth])] = nth
    for key in keys:
        if key >= instances:
            votes += 1
        elif key >= 0:
            votes += len(_row(key, rows))
    places, slots, count = np.empty(votes, dtype=np.int64), np.empty(votes, dtype=np.int64), 0
    for slot in range(len(keys)):
        key = keys[slot]
        if key < 0:
            continue
        is_label = key >= instances
        row = rows[3][:0] if is_label else _row(key, rows)
        for nth in range(1 if is_label else len(row)):
            label = key - instances if is_label else np.int64(row[nth])
            nth_wanted = table[_find(table, wanted, label)]
            if nth_wanted >= 0 and not (len(removed) and removed[label]):
                places[count], slots[count] = nth_wanted, slot
                count += 1
    return places[:count], slots[:count]


@_inlined
def _is_before(
    first: Float[np.ndarray, " row"],
    second: Float[np.ndarray, " row"],
    last: Int[np.ndarray, " row"],
    a: int,
    b: int,
) -> bool:
    if first[a] != first[b]:
        return bool(first[a] > first[b])
    if second[a] != second[b]:
        return bool(second[a] > second[b])
    return bool(last[a] < last[b])


@_inlined
def _sift(
    heap: Int[np.ndarray, " row"],
    size: int,
    place: int,
    first: Float[np.ndarray, " row"],
    second: Float[np.ndarray, " row"],
    last: Int[np.ndarray, " row"],
) -> None:
    """Move the row at a place of a heap down, until it comes after its children. The last row of all is at place 0."""
    row = heap[place]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and _is_before(first, second, last, heap[child], heap[child + 1]):
            child += 1
        if not _is_before(first, second, last, row, heap[child]):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = row


@_inlined
def _heap_of_best(
    start: int,
    stop: int,
    most: int,
    first: Float[np.ndarray, " row"],
    second: Float[np.ndarray, " row"],
    last: Int[np.ndarray, " row"],
) -> Int[np.ndarray, " best"]:
    """The rows that `_best` finds, but only the last of them has its place: it is the first of the heap."""
    size = min(most, stop - start)
    heap = np.empty(size, dtype=np.int64)
    for place in range(size):
        heap[place] = start + place
    for place in range(size // 2 - 1, -1, -1):
        _sift(heap, size, place, first, second, last)
    for row in range(start + size, stop):
        if size and _is_before(first, second, last, row, heap[0]):
            heap[0] = row
            _sift(heap, size, 0, first, second, last)
    return heap


@_inlined
def _best(
    start: int,
    stop: int,
    most: int,
    first: Float[np.ndarray, " row"],
    second: Float[np.ndarray, " row"],
    last: Int[np.ndarray, " row"],
) -> Int[np.ndarray, " best"]:
    """The first `most` of the rows from `start` to `stop`: falling by `first`, then by `second`, rising by `last`."""
    heap = _heap_of_best(start, stop, most, first, second, last)
    for end in range(len(heap) - 1, 0, -1):  # the last row of those that are left moves behind them
        heap[0], heap[end] = heap[end], heap[0]
        _sift(heap, end, 0, first, second, last)
    return heap


@_compiled(
    _tuple_of((_array(int8, 2), _array(float32), _array(float32))),
    _array(boolean),
    _array(int16),
    float64,
    float64,
    float64,
    float64,
)
def near_codes(
    vectors: tuple[Int8[np.ndarray, "row dim"], Float[np.ndarray, " row"], Float[np.ndarray, " row"]],
    removed: Bool[np.ndarray, " row"],
    query: Int[np.ndarray, " dim"],
    query_scale: float,
    query_length: float,
    query_error: float,
    minimum: float,
) -> Int[np.ndarray, " candidate"]:
    """The rows whose vectors can have a similarity of at least `minimum` to a query, without removed rows.

    Args:
        vectors: Codes, scales and errors: row i is the vector `scales[i] * codes[i]`, at a distance of at most
            `errors[i]` from the true one.
        query: The query is about `query_scale * query`; at most 12 bits, so that sums have at most 32.
        query_error: The distance of the query to `query_scale * query`, times the length of the longest possible code.
    """
    codes, scales, errors = vectors
    rows, found = np.empty(len(codes), dtype=np.int64), 0
    for row in range(len(codes)):
        similarity = np.int32(0)
        for nth in range(len(query)):  # the conversions keep to 32 bits; numba would take 64
            similarity = np.int32(similarity + np.int32(np.int32(codes[row, nth]) * np.int32(query[nth])))
        scale = np.float64(scales[row])
        slack = errors[row] * query_length + scale * query_error
        if scale * query_scale * similarity + slack >= minimum and not removed[row]:
            rows[found] = row
            found += 1
    return rows[:found].copy()


# Weight of a pair of words in a text, against that of a word. At 1, pairs make up half of a text's length and outweigh
# its words.
PAIR_WEIGHT = 0.25
# Up to this number of postings for each text, reading all of them takes less time than a search for each text.
_READ_ALL = 40
# A term is frequent if more than one of this number of texts contains it.
_FREQUENT = 16


@_inlined
def _seek(values: Int[np.ndarray, " value"], low: int, high: int, guess: int, wanted: int | np.int64) -> int:
    """The first place from `low` to `high` whose value is at least the wanted one. A good guess takes few steps."""
    place, step = min(max(guess, low), high), 1
    if place < high and values[place] < wanted:
        while place + step < high and values[place + step] < wanted:
            place += step
            step *= 2
        low, high = place + 1, min(place + step, high)
    else:
        while place - step >= low and values[place - step] >= wanted:
            place -= step
            step *= 2
        low, high = max(low, place - step), place
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@_inlined
def _hash_pair(first: np.uint64, second: np.uint64) -> np.uint64:
    """Hash a pair of words to an odd number. The order of the two words matters."""
    mixed = (first * np.uint64(0x9E3779B97F4A7C15) + second) * np.uint64(0xBF58476D1CE4E5B9)
    return (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)


@_compiled(_array(int64), _array(uint64))
def count_terms(
    offsets: Int[np.ndarray, " offset"], words: UInt64[np.ndarray, " word"]
) -> tuple[Int[np.ndarray, " offset"], UInt64[np.ndarray, " term"], Int[np.ndarray, " term"]]:
    """The different words and pairs of neighbouring words of each text, and how often each of them occurs.

    Text i has the words `offsets[i]` to `offsets[i + 1]`. The result has new offsets, the terms, and their numbers.
    """
    texts, most = len(offsets) - 1, 0
    for text in range(texts):
        most = max(most, 2 * (offsets[text + 1] - offsets[text]))
    ends, count = np.zeros(texts + 1, dtype=np.int64), 0
    terms, frequencies = np.empty(2 * len(words), dtype=np.uint64), np.zeros(2 * len(words), dtype=np.int64)
    table, entries = _table(most), terms.view(np.int64)
    for text in range(texts):
        start, first, length = count, offsets[text], offsets[text + 1] - offsets[text]
        own = entries[start:]
        _clear(table)
        for nth in range(2 * length - 1):  # all words, then all pairs
            word = first + nth - (length if nth >= length else 0)
            term = words[word] if nth < length else _hash_pair(words[word], words[word + 1])
            entry = start + _entry(table, own, count - start, np.int64(term))
            if entry == count:
                count += 1
            frequencies[entry] += 1
        ends[text + 1] = count
    return ends, terms[:count], frequencies[:count]


@_compiled(_array(uint64), _array(uint64), _array(int64), _array(int64))
def find_postings(
    terms: UInt64[np.ndarray, " term"],
    known: UInt64[np.ndarray, " known"],
    offsets: Int[np.ndarray, " offset"],
    parts: Int[np.ndarray, " part_offset"],
) -> tuple[Int[np.ndarray, "part term 2"], Int[np.ndarray, " term"]]:
    """Find the postings of some terms; the other arguments are those of `Postings`, with `known` for its terms.

    Returns:
        For each part and each term, the first posting and the one after the last; and the number of each term's
        postings.
    """
    spans, counts = np.zeros((len(parts) - 1, len(terms), 2), dtype=np.int64), np.zeros(len(terms), dtype=np.int64)
    guesses = np.empty(len(terms), dtype=np.int64)
    for part in range(len(parts) - 1):
        low, high = parts[part], parts[part + 1]
        density = (high - low) / 2.0**64  # hashes are evenly distributed
        if low == high:
            continue
        for nth in range(len(terms)):
            guesses[nth] = low + np.int64(np.float64(terms[nth]) * density)
        for _ in range(2):  # in loops without branches, the processor waits for many entries at once
            for nth in range(len(terms)):
                guess = min(max(guesses[nth], low), high - 1)
                guesses[nth] = guess + np.int64((np.float64(terms[nth]) - np.float64(known[guess])) * density)
        for nth in range(len(terms)):
            term = terms[nth]
            place = _seek(known, low, high, guesses[nth], term)
            if place < high and known[place] == term:
                spans[part, nth, 0], spans[part, nth, 1] = offsets[place], offsets[place + 1]
                counts[nth] += offsets[place + 1] - offsets[place]
    return spans, counts


@_compiled(_array(int64), _array(int32), int64)
def map_frequent(
    offsets: Int[np.ndarray, " offset"], rows: Int[np.ndarray, " posting"], texts: int
) -> tuple[Int[np.ndarray, " frequent"], UInt64[np.ndarray, "frequent word"]]:
    """Map the postings of the frequent terms, which have most of the postings that a query finds.

    A map gives the posting of any text in a few steps. It takes two bits for each text of the index. `offsets` and
    `rows` are those of `Postings`.

    Returns:
        The first posting of each frequent term, and its map: a word for each 32 texts. The low half of a word has a bit
        for each of these texts, which is 1 if the text contains the term. The high half is the number of postings of
        earlier texts.
    """
    count, terms = 0, np.empty(len(offsets) - 1, dtype=np.int64)
    for term in range(len(offsets) - 1):
        terms[count] = term
        count += (offsets[term + 1] - offsets[term]) * _FREQUENT > texts
    starts, maps = np.empty(count, dtype=np.int64), np.empty((count, (texts + 31) // 32), dtype=np.uint64)
    for nth in range(count):
        posting, stop = offsets[terms[nth]], offsets[terms[nth] + 1]
        starts[nth] = posting
        for place in range(maps.shape[1]):
            word = np.uint64(posting - starts[nth]) << np.uint64(32)
            while posting < stop and rows[posting] >> 5 == place:
                word |= np.uint64(1) << np.uint64(rows[posting] & 31)
                posting += 1
            maps[nth, place] = word
    return starts, maps


@_inlined
def _count_ones(word: np.uint64) -> np.uint64:
    """The number of ones in a word. The compiler makes one instruction of this pattern."""
    word -= word >> np.uint64(1) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + (word >> np.uint64(2) & np.uint64(0x3333333333333333))
    word = word + (word >> np.uint64(4)) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return word * np.uint64(0x0101010101010101) >> np.uint64(56)


@_inlined
def _half(bits: int) -> float:
    """A 16-bit float from 0 to 1 by its bits. They are also the bits of a 32-bit float with another exponent."""
    return np.float64(np.uint32(np.uint32(bits) << np.uint32(13)).view(np.float32)) * 2.0**112


@_inlined
def _add_postings(
    posting_rows: Int[np.ndarray, " posting"],
    bits: UInt16[np.ndarray, " posting"],
    spans: Int[np.ndarray, "term 2"],
    weights: Float[np.ndarray, " term"],
    terms: Int[np.ndarray, " chosen"],
    sums: Float[np.ndarray, " text"],
    rows: Int[np.ndarray, " found"],
    count: int,
) -> int:
    """Add the postings of some terms to the sums of their texts, and list the texts; return the number of all texts."""
    for term in terms:
        for posting in range(spans[term, 0], spans[term, 1]):
            row = np.uint32(posting_rows[posting])  # numba checks whether a signed index is negative
            before, share = sums[row], _half(bits[posting]) * weights[term]
            rows[count] = row  # without a branch, because about half of the texts are new
            count += (before == 0) & (share > 0)
            sums[row] = before + share
    return count


@_inlined
def _add_to_rows(
    posting_rows: Int[np.ndarray, " posting"],
    bits: UInt16[np.ndarray, " posting"],
    spans: Int[np.ndarray, "term 2"],
    weights: Float[np.ndarray, " term"],
    frequent: tuple[Int[np.ndarray, " frequent"], UInt64[np.ndarray, "frequent word"]],
    terms: Int[np.ndarray, " rest"],
    sums: Float[np.ndarray, " text"],
    rows: Int[np.ndarray, " row"],
) -> None:
    """Add the postings of some terms to the sums of the only texts that have a sum."""
    starts, maps = frequent
    for term in terms:
        start, end = spans[term, 0], spans[term, 1]
        nth = _seek(starts, 0, len(starts), 0, start)
        if nth < len(starts) and starts[nth] == start < end:
            for row in rows:
                bit = np.uint64(row & 31)
                word = maps[nth, row >> 5] if row >> 5 < maps.shape[1] else np.uint64(0)  # no map has added texts
                if word >> bit & np.uint64(1):
                    before = (word >> np.uint64(32)) + _count_ones(word & (np.uint64(1) << bit) - np.uint64(1))
                    sums[row] += _half(bits[np.uint64(start) + before]) * weights[term]
        elif end - start <= _READ_ALL * len(rows):
            for posting in range(start, end):
                text = np.uint32(posting_rows[posting])
                if sums[text] != 0:
                    sums[text] += _half(bits[posting]) * weights[term]
        else:
            first, last = posting_rows[start], posting_rows[end - 1]
            density = (end - 1 - start) / (last - first)
            for row in rows:
                place = _seek(posting_rows, start, end, start + np.int64((row - first) * density), row)
                if place < end and posting_rows[place] == row:
                    sums[row] += _half(bits[place]) * weights[term]


@_inlined
def _take(
    rows: Int[np.ndarray, " found"],
    sums: Float[np.ndarray, " text"],
    removed: Bool[np.ndarray, " row"],
    last_keys: Int[np.ndarray, " last"],
    keys: Int[np.ndarray, " found"],
    values: Float[np.ndarray, " found"],
) -> int:
    """List the rows, keys and sums of the texts that were not removed, return their number, and make all sums 0."""
    count, own_keys = 0, len(sums) - len(last_keys)
    for row in rows:
        if row >= len(removed) or not removed[row]:
            rows[count], values[count] = row, sums[row]
            keys[count] = row if row < own_keys else last_keys[row - own_keys]
            count += 1
        sums[row] = 0.0
    return count


# Of the mapped postings, and of those of texts that were added: the spans of the terms, the texts, and the weights.
_POSTINGS = _tuple_of([_tuple_of((each, each)) for each in (_array(int64, 3), _array(int32), _array(uint16))])
Postings = tuple[
    tuple[Int[np.ndarray, "part term 2"], ...],
    tuple[Int[np.ndarray, " posting"], ...],
    tuple[UInt16[np.ndarray, " posting"], ...],
]


@_compiled(
    _tuple_of((_array(int64), _array(uint64), _array(float64), _array(int64))),
    _POSTINGS,
    _tuple_of((_array(int64), _array(uint64, 2))),
    _array(boolean),
    _array(int64),
    float64[::1],
    _tuple_of((int64, int64, int64)),
)
def search_words(
    queries: tuple[
        Int[np.ndarray, " offset"], UInt64[np.ndarray, " term"], Float[np.ndarray, " term"], Int[np.ndarray, " term"]
    ],
    postings: Postings,
    frequent: tuple[Int[np.ndarray, " frequent"], UInt64[np.ndarray, "frequent word"]],
    removed: Bool[np.ndarray, " row"],
    last_keys: Int[np.ndarray, " last"],
    sums: Float[np.ndarray, " text"],
    limits: tuple[int, int, int],
) -> tuple[Int[np.ndarray, "query top"], Float[np.ndarray, "query top"]]:
    """Find the texts of one index that are most similar to each query by words.

    Args:
        queries: Offsets, terms, impacts and texts: query i has the terms `offsets[i]` to `offsets[i + 1]`; the weight
            of each term in its query, before scaling; the number of texts that contain it.
        postings: Spans, rows and bits, of the mapped postings and of those of texts that were added: the postings of
            each term, from `find_postings`; the text of each posting; its weight, as the bits of a 16-bit float from 0
            to 1.
        frequent: The result of `map_frequent` for the mapped postings.
        removed: Whether each text was removed; texts beyond its end were not.
        last_keys: The keys of the last texts; the key of another text is its row.
        sums: A zero for each text, which is 0 again at the end.
        limits: Number of texts to find, of postings that choose candidates, and of candidates.

    Returns:
        Keys and similarities, by falling similarity, then by rising key. Only texts with a positive similarity are
        found; the other places have the key -1 and the similarity -inf.
    """
    (offsets, terms, impacts, texts), (spans, posting_rows, bits), (top, budget, candidates) = queries, postings, limits
    found_keys = np.full((len(offsets) - 1, top), -1, dtype=np.int64)
    found_similarities = np.full((len(offsets) - 1, top), -np.inf, dtype=np.float32)
    weights, measure = np.empty(len(terms), dtype=np.float32), np.empty(len(terms))
    for query in range(len(offsets) - 1):
        first, stop, squares, known = offsets[query], offsets[query + 1], 0.0, 0
        for term in range(first, stop):
            squares += impacts[term] * impacts[term]
        for term in range(first, stop):
            weights[term] = impacts[term] / np.sqrt(squares)
            in_texts = PAIR_WEIGHT if terms[term] & np.uint64(1) else 1.0
            # A posting of a rare term tells more: the impact of a term against the cost of its postings.
            measure[term] = impacts[term] * in_texts / np.sqrt(texts[term]) if texts[term] else 0.0
            known += texts[term] > 0
        order = _best(first, stop, known, measure, measure, texts)
        chosen, cost, most = 0, 0, 1
        for term in order:
            cost += texts[term]
            if chosen == 0 or cost <= budget:
                chosen += 1
                for kind in range(2):
                    for part in range(len(spans[kind])):
                        most += spans[kind][part, term, 1] - spans[kind][part, term, 0]

        rows, keys, values = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64), np.empty(most)
        found = 0
        for kind in range(2):
            for own in spans[kind]:
                found = _add_postings(posting_rows[kind], bits[kind], own, weights, order[:chosen], sums, rows, found)
        found = _take(rows[:found], sums, removed, last_keys, keys, values)
        if chosen < known:
            best = _heap_of_best(0, found, candidates, values, values, keys)
            found, near, rest = len(best), np.empty(len(best), dtype=np.int64), order[chosen:]
            for nth in range(found):
                near[nth] = rows[best[nth]]
                sums[near[nth]] = values[best[nth]]
            for kind in range(2):
                maps = (frequent[0][:0] if kind else frequent[0]), frequent[1]
                for own in spans[kind]:
                    _add_to_rows(posting_rows[kind], bits[kind], own, weights, maps, rest, sums, near)
            found = _take(near, sums, removed, last_keys, keys, values)
        for nth in range(found):
            values[nth] = np.float32(values[nth])
        best = _best(0, found, top, values, values, keys)
        for nth in range(len(best)):
            found_keys[query, nth], found_similarities[query, nth] = keys[best[nth]], values[best[nth]]
    return found_keys, found_similarities


# The four searches of a query: instances and labels by their vectors, and both by their words.
_SEARCHES = 4
_FOUND = _tuple_of([_tuple_of((each[:, ::1],) * _SEARCHES) for each in (int64, float32)])
# Columns of the evidence for a label: its votes, the sum of the similarities of its instances by vectors, then for each
# search the weight of its keys, their number, and the place of the nearest one.
_EVIDENCE = 2 + 3 * _SEARCHES


@_inlined
def _fill_nearest(
    features: Float[np.ndarray, " feature"],
    evidence: Float[np.ndarray, " evidence"],
    count: int,
    similarities: Float[np.ndarray, " found"],
    nearest: float,
    place: int,
    similarity: int,
    gap: int,
) -> None:
    """Write the place, the similarity and the gap of a candidate's nearest key in a search to three columns.

    Without such a key, the features stay as they are. The evidence has the number of the candidate's keys in column
    `count`, and then the place of the nearest one.
    """
    if evidence[count] > 0:
        found = similarities[int(evidence[count + 1])]
        features[place] = evidence[count + 1]
        features[similarity] = found
        features[gap] = nearest - found


@_inlined
def _fill_features(
    features: Float[np.ndarray, " feature"],
    evidence: Float[np.ndarray, " evidence"],
    similarities: tuple[Float[np.ndarray, "query found"], ...],
    query: int,
    best_score: float,
    nearest: Float[np.ndarray, " search"],
    with_words: bool,
) -> None:
    """Write the features of one candidate that depend on the searches; those without evidence become NaN."""
    for column in range(len(features)):
        features[column] = np.nan
    features[0] = evidence[0]  # votes
    features[1] = evidence[0] / max(best_score, 1e-300)  # votes_of_best
    features[2] = evidence[2]  # instance_votes
    features[3] = evidence[3]  # instance_count
    if evidence[3] > 0:
        features[7] = evidence[1] / evidence[3]  # instance_mean
    features[9] = nearest[0]  # nearest_instance
    features[10] = evidence[5]  # label_votes
    if with_words:
        features[23] = evidence[8]  # word_instance_votes
        features[24] = evidence[9]  # word_instance_count
    # instance_..., label_..., word_instance_... and word_label_...: place, similarity and gap
    _fill_nearest(features, evidence, 3, similarities[0][query], nearest[0], 5, 6, 8)
    _fill_nearest(features, evidence, 6, similarities[1][query], nearest[1], 12, 11, 13)
    _fill_nearest(features, evidence, 9, similarities[2][query], nearest[2], 25, 26, 27)
    _fill_nearest(features, evidence, 12, similarities[3][query], nearest[3], 29, 28, 30)


@_inlined
def _fill_name_features(
    features: Float[np.ndarray, " feature"],
    name: Int[np.ndarray, " name_word"],
    words: Int[np.ndarray, " word"],
    table: Int[np.ndarray, " place"],
) -> None:
    """Write the features of one candidate's name; the table has the words of the query."""
    features[15] = len(name)  # name_words
    shared = 0
    for word in name:
        shared += table[_find(table, words, word)] >= 0
    if len(name):
        features[16] = shared / len(name)  # name_share
    for start in range(len(words) - len(name) + 1 if 0 < len(name) == shared else 0):
        nth = 0
        while nth < len(name) and words[start + nth] == name[nth]:
            nth += 1
        if nth == len(name):
            features[17] = start  # name_place
            break


@_inlined
def _fill_stem_features(
    features: Float[np.ndarray, " feature"],
    name: Int[np.ndarray, " name_word"],
    counts: Int[np.ndarray, " name_word"],
    stems: Int[np.ndarray, " word"],
    table: Int[np.ndarray, " place"],
) -> None:
    """Write the features of one candidate's stems; the table has the first place of each stem of the query."""
    shared = 0
    for nth in range(len(name)):
        place = table[_find(table, stems, name[nth])]
        if place >= 0:
            features[19] = min(features[19], counts[nth]) if shared else counts[nth]  # stem_count
            features[20] = min(features[20], place) if shared else place  # stem_place
            shared += 1
    if len(name):
        features[18] = shared / len(name)  # stem_share


@_inlined
def _add_related(
    entry: int,
    label: int | np.int64,
    evidence: Float[np.ndarray, "entry evidence"],
    together: tuple[Int[np.ndarray, " offset"], Int[np.ndarray, " related"], UInt16[np.ndarray, " related"]],
    table: Int[np.ndarray, " place"],
    found: Int[np.ndarray, " entry"],
    related: Float[np.ndarray, " entry"],
) -> None:
    """Add the votes for one label, times the shares of its instances that have each other label, to these labels."""
    offsets, others, shares = together
    if label + 1 < len(offsets):
        for place in range(offsets[label], offsets[label + 1]):
            other = table[_find(table, found, np.int64(others[place]))]
            if other >= 0:
                related[other] += evidence[entry, 0] * shares[place] / 65535


@_compiled(
    _FOUND,
    _tuple_of((_array(int64, 2), _array(float64, 2), float64, float64)),
    _VALUES,
    _array(float64),
    _array(boolean),
    _tuple_of((_array(int32), _WORDS_OF_ROWS, _WORDS_OF_ROWS, _LABELS_OF_ROWS, _array(int32))),
    _tuple_of((_array(int64), _array(int32), _array(uint16))),
    _tuple_of((_array(int64), _array(int64), _array(int64))),
    _tuple_of((int64, int64, int64, int64, boolean)),
)
def find_candidates(
    searches: tuple[tuple[Int[np.ndarray, "query found"], ...], tuple[Float[np.ndarray, "query found"], ...]],
    voting: tuple[Int[np.ndarray, "query voting"], Float[np.ndarray, "query voting"], float, float],
    values: ValueArrays,
    live_log_counts: Float[np.ndarray, " live"],
    admits: Bool[np.ndarray, " label"],
    facts: tuple[Int[np.ndarray, " label"], Rows, Rows, Rows, Int[np.ndarray, " label"]],
    together: tuple[Int[np.ndarray, " offset"], Int[np.ndarray, " related"], UInt16[np.ndarray, " related"]],
    query_words: tuple[
        Int[np.ndarray, " query_offset"], Int[np.ndarray, " query_word"], Int[np.ndarray, " query_word"]
    ],
    limits: tuple[int, int, int, int, bool],
) -> tuple[Int[np.ndarray, " offset"], Int[np.ndarray, " candidate"], Float[np.ndarray, "candidate feature"]]:
    """Choose the ranker's candidates of each query, and compute their features.

    Args:
        searches: Keys and similarities of each of the four searches: rows of instances, or positions of labels; -1 for
            no key.
        voting: The keys that vote (the first ones by vectors of both kinds, those of a kind in their order), their
            weights, lambda, and tau of the softmax over the keys of a search by vectors.
        values: `Values.arrays`.
        live_log_counts: See `weigh_keys`.
        admits: Whether each label may be a candidate; empty means that all may.
        facts: The number of training instances of each label; the words of the names and their stems as 64-bit hashes,
            and the number of names with each stem; and the number of the name of each label, empty if it is the label.
        together: For the first labels, the labels that occur together with them, and the shares of their instances in
            65,535ths.
        query_words: Offsets, words and stems of the queries: query i has the words `offsets[i]` to `offsets[i + 1]`.
        limits: Number of candidates by votes, and by the weights of each search; number of features; number of words of
            a query, from its first word, that are compared with names; whether there is a lexical index. Without one,
            the features of words are NaN.

    Returns:
        Query i has the candidates `offsets[i]` to `offsets[i + 1]`, in no particular order; and the features, in the
        order of `recollect/core/reranker/candidates.py`.
    """
    keys, similarities = searches
    voters, weights, lambda_, temperature = voting
    value_rows, removed, labels = values
    counts, names, name_stems, stem_counts, name_of = facts
    by_votes, by_others, columns, most_words, with_words = limits
    queries, mapped = len(voters), len(value_rows[0]) - 1
    instances = mapped + len(value_rows[2]) - 1
    offsets = np.zeros(queries + 1, dtype=np.int64)
    most = queries * min(by_votes + _SEARCHES * by_others, labels)
    candidates, features = np.empty(most, dtype=np.int64), np.empty((most, columns), dtype=np.float32)
    nearest = np.empty(_SEARCHES)
    for query in range(queries):
        entries = 0
        for search in range(_SEARCHES):
            for key in keys[search][query]:
                if key >= 0:
                    is_label = search % 2 == 1
                    entries += 1 if is_label else len(_row(key, value_rows))
        entries = min(entries, labels)
        table, found, count = _table(entries), np.empty(entries, dtype=np.int64), 0
        evidence, best_score = np.empty((entries, _EVIDENCE)), 0.0
        for search in range(_SEARCHES):
            is_label, column, own = search % 2 == 1, 2 + 3 * search, keys[search][query]
            share = np.empty(len(own))
            for slot in range(len(own)):
                similarity = similarities[search][query, slot]
                share[slot] = np.float64(similarity) / temperature if search < 2 else _word_logit(similarity)
            _softmax(own, share, mapped, live_log_counts if search == 0 else live_log_counts[:0], 1.0)
            votes = np.zeros(len(own))
            slot = 0
            for nth in range(voters.shape[1] if search < 2 else 0):
                key = voters[query, nth]
                if key < 0 or (key >= instances) != is_label:
                    continue
                if own[slot] != (key - instances if is_label else key):
                    raise IndexError("the keys that vote are not the first ones of each kind")
                votes[slot] = weights[query, nth] * ((1 - lambda_) if is_label else lambda_)
                slot += 1
            for slot in range(len(own)):
                key = own[slot]
                if key < 0:
                    continue
                row = value_rows[3][:0] if is_label else _row(key, value_rows)
                for nth in range(1 if is_label else len(row)):
                    label = key if is_label else np.int64(row[nth])
                    if len(removed) and removed[label]:
                        continue
                    entry = _entry(table, found, count, label)
                    if entry == count:
                        count += 1
                        for each in range(_EVIDENCE):
                            evidence[entry, each] = 0.0
                    if evidence[entry, column + 1] == 0:
                        evidence[entry, column + 2] = slot
                    evidence[entry, 0] += votes[slot]
                    evidence[entry, column] += share[slot]
                    evidence[entry, column + 1] += 1
                    if search == 0:
                        evidence[entry, 1] += similarities[search][query, slot]
            has_key = len(own) > 0 and own[0] >= 0
            nearest[search] = similarities[search][query, 0] if has_key else np.nan

        chosen, measure = np.zeros(count, dtype=np.bool_), np.empty(count)
        rows, row_labels = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        for nth in range(1 + _SEARCHES):
            column, size = 3 * nth - 1 if nth else 0, 0
            for entry in range(count):
                if evidence[entry, column] > 0 and (not len(admits) or admits[found[entry]]):
                    measure[size], row_labels[size], rows[size] = evidence[entry, column], found[entry], entry
                    size += 1
            for row in _heap_of_best(0, size, by_others if nth else by_votes, measure, measure, row_labels):
                chosen[rows[row]] = True

        first_word, end = query_words[0][query], query_words[0][query + 1]
        words = query_words[1][first_word : min(end, first_word + most_words)]
        stems = query_words[2][first_word : min(end, first_word + most_words)]
        word_table, stem_table, stop = _table(len(words)), _table(len(words)), offsets[query]
        for nth in range(len(words)):
            word_table[_find(word_table, words, words[nth])] = nth
            place = _find(stem_table, stems, stems[nth])
            if stem_table[place] < 0:
                stem_table[place] = nth
        related = np.zeros(count)
        for entry in range(count):
            # A label that a filter leaves out votes for related ones, so that a filter hardly changes a logit.
            left_out = len(admits) > 0 and not admits[found[entry]]
            if (chosen[entry] or left_out) and evidence[entry, 0] > 0:
                _add_related(entry, found[entry], evidence, together, table, found, related)
        for entry in range(count):
            best_score = max(best_score, evidence[entry, 0])
        for entry in range(count):
            if not chosen[entry]:
                continue
            label = found[entry]
            candidates[stop] = label
            own_features = features[stop]
            _fill_features(own_features, evidence[entry], similarities, query, best_score, nearest, with_words)
            own_features[4] = own_features[3] / max(counts[label], 1)  # instance_share
            own_features[14] = counts[label]  # training_count
            number = np.int64(name_of[label]) if len(name_of) else label
            _fill_name_features(own_features, _row(number, names), words, word_table)
            own_stems, own_counts = _row(number, name_stems), _row(number, stem_counts)
            _fill_stem_features(own_features, own_stems, own_counts, stems, stem_table)
            if len(together[0]) > 1:
                own_features[21] = related[entry]  # cooccurrence
            stop += 1
        offsets[query + 1] = stop
    return offsets, candidates[: offsets[queries]], features[: offsets[queries]]


@_compiled(
    _tuple_of((_array(int64), _array(uint32), _array(int16))),
    _tuple_of((_array(int64), _array(int64), _array(float64))),
    _array(int64),
    _array(int64),
)
def score_terms(
    rows: tuple[Int[np.ndarray, " offset"], UInt32[np.ndarray, " entry"], Int[np.ndarray, " entry"]],
    queries: tuple[Int[np.ndarray, " query_offset"], Int[np.ndarray, " term"], Float[np.ndarray, " term"]],
    offsets: Int[np.ndarray, " offset"],
    labels: Int[np.ndarray, " candidate"],
) -> Float[np.ndarray, " candidate"]:
    """The sum of the weights of each candidate's terms in its query, each times the value of the term in the query.

    Args:
        rows: Label i has the terms and the weights, in 1,024ths, `offsets[i]` to `offsets[i + 1]`.
        queries: The terms of each query, and their values.
        offsets: Query i has the candidates `offsets[i]` to `offsets[i + 1]`.

    Returns:
        The sums; NaN for a label without a row.
    """
    starts, terms, weights = rows
    query_starts, query_terms, values = queries
    sums = np.full(len(labels), np.nan, dtype=np.float32)
    for query in range(len(offsets) - 1):
        own = query_terms[query_starts[query] : query_starts[query + 1]]
        own_values = values[query_starts[query] : query_starts[query + 1]]
        table = _table(len(own))
        for nth in range(len(own)):
            table[_find(table, own, own[nth])] = nth
        for candidate in range(offsets[query], offsets[query + 1]):
            label = labels[candidate]
            if label + 1 >= len(starts) or starts[label] == starts[label + 1]:
                continue
            total = 0.0
            for entry in range(starts[label], starts[label + 1]):
                nth = table[_find(table, own, np.int64(terms[entry]))]
                if nth >= 0:
                    total += weights[entry] * own_values[nth]
            sums[candidate] = total / 1024
    return sums


# Number of rows that the trees see together; their features and their leaves stay in the fastest cache.
_TREE_ROWS = 256


@_compiled(
    _array(float32, 2),
    _array(int64),
    _array(int32),
    _array(float32),
    _array(boolean),
    _array(uint64),
    _array(int64),
    _array(float64, 2),
)
def sum_trees(
    rows: Float[np.ndarray, "row feature"],
    first_splits: Int[np.ndarray, " tree_offset"],
    feature: Int[np.ndarray, " split"],
    threshold: Float[np.ndarray, " split"],
    missing_left: Bool[np.ndarray, " split"],
    kept: UInt64[np.ndarray, " split"],
    first_leaves: Int[np.ndarray, " tree"],
    leaves: Float[np.ndarray, "column leaf"],
) -> Float[np.ndarray, "column row"]:
    """Sum a value of the leaves that each row reaches in all trees, by bit masks (QuickScorer, SIGIR 2015).

    The leaves of a tree are numbered from left to right. A row that goes to the right of a split cannot reach the
    leaves to the left of the split. It reaches the first leaf that no split excludes.

    Args:
        rows: The features of each row. NaN is a missing feature.
        first_splits: Tree i has the splits `first_splits[i]` to `first_splits[i + 1]`.
        feature: The feature that each split compares.
        threshold: A row whose feature is at most this threshold goes to the left.
        missing_left: Whether a row without this feature goes to the left.
        kept: The leaves of the tree that a row can reach if it goes to the right, as bits.
        leaves: The values of the leaves; each column is summed apart.
    """
    sums, every = np.zeros((len(leaves), len(rows))), ~np.uint64(0)
    columns, reached = np.empty((rows.shape[1], _TREE_ROWS), dtype=np.float32), np.empty(_TREE_ROWS, dtype=np.uint64)
    for start in range(0, len(rows), _TREE_ROWS):
        size = min(_TREE_ROWS, len(rows) - start)
        for row in range(size):
            for column in range(rows.shape[1]):
                columns[column, row] = rows[start + row, column]
        for tree in range(len(first_leaves)):
            for row in range(size):
                reached[row] = every
            for split in range(first_splits[tree], first_splits[tree + 1]):
                values, most, others = columns[feature[split]], threshold[split], kept[split]
                missing_right = not missing_left[split]
                for row in range(size):
                    goes_right = values[row] > most or (missing_right and values[row] != values[row])
                    reached[row] &= others if goes_right else every
            for column in range(len(leaves)):
                for row in range(size):
                    lowest = reached[row] & (~reached[row] + np.uint64(1))
                    leaf = (np.float64(lowest).view(np.int64) >> np.int64(52)) - np.int64(1023)  # its exponent
                    sums[column, start + row] += leaves[column, first_leaves[tree] + leaf]
    return sums


_SCORES = (_array(int64), _array(int64), _array(float64))


@_compiled(*_SCORES, *_SCORES, int64)
def order_labels(
    offsets: Int[np.ndarray, " offset"],
    labels: Int[np.ndarray, " row"],
    scores: Float[np.ndarray, " row"],
    candidate_offsets: Int[np.ndarray, " candidate_offset"],
    candidates: Int[np.ndarray, " candidate"],
    logits: Float[np.ndarray, " candidate"],
    most: int,
) -> tuple[
    Int[np.ndarray, " offset"], Int[np.ndarray, " best"], Float[np.ndarray, " best"], Float[np.ndarray, " best"]
]:
    """Order the labels of each query: the ranker's candidates by their logits, then the other labels by their scores.

    A candidate without a score has the score 0, and a label that is no candidate has the logit -inf. At equal logits
    and scores, the lower label comes first.

    Args:
        offsets: Query i has the scored labels `offsets[i]` to `offsets[i + 1]`.
        candidate_offsets: Query i has the candidates `candidate_offsets[i]` to `candidate_offsets[i + 1]`.
        candidates: The ranker's candidates.

    Returns:
        New offsets, the labels, their scores and their logits.
    """
    queries = len(offsets) - 1
    ends, total, widest = np.zeros(queries + 1, dtype=np.int64), 0, 0
    for query in range(queries):
        size = offsets[query + 1] - offsets[query] + candidate_offsets[query + 1] - candidate_offsets[query]
        total, widest = total + min(size, most), max(widest, size)
    best, best_scores, best_logits = np.empty(total, dtype=np.int64), np.empty(total), np.empty(total)
    joined, joined_scores, joined_logits = np.empty(widest, dtype=np.int64), np.empty(widest), np.empty(widest)
    for query in range(queries):
        first = candidate_offsets[query]
        count = candidate_offsets[query + 1] - first
        table = _table(count)
        for nth in range(count):
            table[_find(table, joined, candidates[first + nth])] = nth
            joined[nth], joined_scores[nth], joined_logits[nth] = candidates[first + nth], 0.0, logits[first + nth]
        for row in range(offsets[query], offsets[query + 1]):
            nth = table[_find(table, joined, labels[row])]
            if nth >= 0:
                joined_scores[nth] = scores[row]
            else:
                joined[count], joined_scores[count], joined_logits[count] = labels[row], scores[row], -np.inf
                count += 1
        stop = ends[query]
        for nth in _best(0, count, most, joined_logits, joined_scores, joined):
            best[stop], best_scores[stop], best_logits[stop] = joined[nth], joined_scores[nth], joined_logits[nth]
            stop += 1
        ends[query + 1] = stop
    stop = ends[queries]
    return ends, best[:stop], best_scores[:stop], best_logits[:stop]


def compile_others() -> None:
    """Compile the loops that a plain request does not call, for example those of explanations and live entries."""
    for loop in (merge, find_voters, near_codes):
        loop.compile()


def compile_all() -> None:
    """Compile all loops, for the cache of an installation."""
    for loop in globals().values():
        if isinstance(loop, Loop):
            loop.compile()
