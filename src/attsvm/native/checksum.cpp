// A number for the bytes of an array, as quick as memory is read; see margins/checksums.py.
#include "attsvm.h"

namespace {

constexpr uint64_t P = 0x9E3779B185EBCA87u, Q = 0xC2B2AE3D27D4EB4Fu;

inline uint64_t mixed(uint64_t h, uint64_t word) {
    h += Q * word;
    return (h << 31 | h >> 33) * P;
}

}  // namespace

// The checksum of `count` words behind the checksum `start`; `name` stands for type and shape.
PUBLIC uint64_t checksum(const uint64_t *words, int64_t count, uint64_t start, uint64_t name) {
    uint64_t a = start, b = start ^ P, c = name, d = name ^ Q;
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        a = mixed(a, words[i]), b = mixed(b, words[i + 1]);
        c = mixed(c, words[i + 2]), d = mixed(d, words[i + 3]);
    }
    for (; i < count; ++i) a = mixed(a, words[i]);
    a = mixed(mixed(mixed(mixed(a, b), c), d), name);
    return a ^ a >> 33;
}
