// The new tokens are in their pages, and queries rotated.
fn query_of(row: u32, head: u32) -> u32 {
    return (q_row * Q_STRIDE + head * HEAD_DIM) / 4u;
}

fn append_token(keys: Keys, kv_head: u32, ends: bool, lane: u32, count: u32) {}
