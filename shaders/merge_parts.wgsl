// sum_t 2^(m_t - m) acc_t and sum_t 2^(m_t - m) l_t over parts t.
//   scratch[part][sequence][head][1 + V_DIM / 4] vec4: (m, l, 0, 0), then acc.
struct Merged {
    acc: vec4<f32>,
    sum: f32,
    m: f32,
}

// Dims 4 * quad .. of `record` = (sequence, head), of which there are `records`.
fn merged(record: u32, records: u32, parts: u32, quad: u32) -> Merged {
    let size = 1u + V_DIM / 4u;
    let end = (record + parts * records) * size;
    var found = Merged(vec4<f32>(), 0.0, -3e38);
    for (var at = record * size; at < end; at += records * size) {
        found.m = max(found.m, scratch[at].x);
    }
    for (var at = record * size; at < end; at += records * size) {
        let part = scratch[at];
        let w = select(exp2(part.x - found.m), 1.0, part.x == found.m);  // exactly 1 for a single part
        found.sum = fma(w, part.y, found.sum);
        found.acc = fma(vec4<f32>(w), scratch[at + 1u + quad], found.acc);
    }
    return found;
}
