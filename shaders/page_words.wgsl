// Which slot a u32 word of a page belongs to, and where the words of one token are.
override PER_WORD: u32;  // elements in a word
override KV_HEADS: u32;
override HEAD_DIM: u32;
override V_DIM: u32;
override LATENT: bool = false;  // values are part of the keys
const NO_SLOT: u32 = 0xffffffffu;

// The slot at `offset` of a tensor with these strides and `dim` elements in a row; in one unit.
fn slot_in(offset: u32, head: u32, token: u32, dim: u32) -> u32 {
    let inner = select(offset, offset % max(head, 1u), head > token);
    let inside = select(inner % token % max(head, 1u), inner % token, head > token || head == 0u);
    let end = (KV_HEADS - 1u) * head + (PAGE_TOKENS - 1u) * token + dim;
    return select(NO_SLOT, inner / token, offset < end && inside < dim);
}

fn slot_of_word(word: u32) -> u32 {
    let element = word * PER_WORD;
    var slot = NO_SLOT;
    if (KS_PAGE > 0u) {
        let key = slot_in(word - KS_BASE, KS_HEAD, KS_TOKEN, 1u);
        let value = slot_in(word - VS_BASE, VS_HEAD, VS_TOKEN, 1u);
        slot = min(key, value);
    }
    let key = slot_in(element - K_BASE, K_HEAD, K_TOKEN, HEAD_DIM);
    let value = slot_in(element - V_BASE, V_HEAD, V_TOKEN, V_DIM);
    return select(min(key, value), slot, slot != NO_SLOT);
}

// Words of one token: keys, values, key scales, value scales.
fn token_words() -> u32 {
    let scales = select(0u, select(2u, 1u, LATENT) * KV_HEADS, KS_PAGE > 0u);
    return KV_HEADS * (HEAD_DIM + select(V_DIM, 0u, LATENT)) / PER_WORD + scales;
}

fn token_word(at: vec2<u32>, i: u32) -> u32 {
    let keys = KV_HEADS * HEAD_DIM;
    let values = select(KV_HEADS * V_DIM, 0u, LATENT);
    let e = i * PER_WORD;
    if (e < keys) {
        return (key_element(at, e / HEAD_DIM) + e % HEAD_DIM) / PER_WORD;
    }
    if (e < keys + values) {
        return (value_element(at, (e - keys) / V_DIM) + (e - keys) % V_DIM) / PER_WORD;
    }
    let head = i - (keys + values) / PER_WORD;
    if (head < KV_HEADS) {
        return key_scale_word(at, head);
    }
    return value_scale_word(at, head - KV_HEADS);
}
