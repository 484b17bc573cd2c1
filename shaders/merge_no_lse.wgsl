fn store_lse(record: u32, lane: u32, m: f32, sum: f32) {}
