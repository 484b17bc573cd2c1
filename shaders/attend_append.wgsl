// What append_kv does, for one new token per sequence, by the workgroups that need it: queries are rotated into
// workgroup memory; who attends to a sequence's last token first writes that token's key and value to its page,
// and nobody else reads them.  Parts of one group of query heads write the same words.
//   rows[sequences][Q_STRIDE] f32: queries, keys, values.
@group(0) @binding(0) var<storage, read> rows: array<vec4<f32>>;
#import rope
#import put

fn query_of(row: u32, head: u32) -> u32 {
    return row * (HEAD_DIM / 4u);
}

// Rotated queries, and after them, if the token is to be written, its key and value.
fn take_token(kv_head: u32, ends: bool, lane: u32, count: u32) {
    let units = HEAD_DIM / 8u;
    let at = q_row * (Q_STRIDE / 4u);
    for (var i = lane; i < select(count, count + 1u, ends) * units; i += LANES) {
        let row = i / units;
        let head = select(GROUP * KV_HEADS + kv_head, min(head0 + row, group_end - 1u), row < count);
        let x = turned8(at + head * (HEAD_DIM / 4u), q_row, i % units);
        let quads = quads_of(i % units);
        if (row < count) {
            turned_query[row * (HEAD_DIM / 4u) + quads.x] = x[0];
            turned_query[row * (HEAD_DIM / 4u) + quads.y] = x[1];
        } else {
            lend(quads.x, x[0]);
            lend(quads.y, x[1]);
        }
    }
    let values = at + ((GROUP + 1u) * KV_HEADS * HEAD_DIM + kv_head * V_DIM) / 4u;
    for (var i = lane; i < select(0u, V_DIM / 4u, ends); i += LANES) {
        lend(HEAD_DIM / 4u + i, rows[values + i]);
    }
}

fn append_token(keys: Keys, kv_head: u32, ends: bool, lane: u32, count: u32) {
    let puts = PUTS && ends;
    take_token(kv_head, puts, lane, count);
    workgroupBarrier();
    if (puts) {
        let slot = u32(keys.slots - 1);
        let at = vec2<u32>(u32(page_indices[keys.first + slot / PAGE_TOKENS]), slot % PAGE_TOKENS);
        if (at.x < page_count()) {
            put_token(at, kv_head, lane);
        }
        storageBarrier();
    }
}
