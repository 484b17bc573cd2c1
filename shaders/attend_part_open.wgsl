// One part, of the open keys, after those of the closed ones; then all parts are merged.
//   out[sequence][head][V_DIM] f32; a sequence without keys gives 0.
@group(0) @binding(8) var<storage, read_write> out: array<vec4<f32>>;
#import open
#import merge

fn part_of(keys: Keys, low: i32, tile: i32) -> Part {
    let opens = open_slot(keys, low);
    let closed = (keys.start + opens - 1) / SPLIT - (keys.start + low) / SPLIT + 1;
    return Part(opens, keys.slots, select(0u, u32(closed), opens > low), true);
}

fn end_part(number: u32, sequences: u32, lane: u32, count: u32) {
    storageBarrier();
    let quads = V_DIM / 4u;
    let next = sequences * KV_HEADS * GROUP;
    for (var i = lane; i < count * quads; i += LANES) {
        let head = head0 + i / quads;
        if (head < group_end) {
            let record = q_row * KV_HEADS * GROUP + head;
            let found = merged(record, next, number + 1u, i % quads);
            out[record * quads + i % quads] = select(vec4<f32>(), found.acc / found.sum, found.sum > 0.0);
        }
    }
}
