// Parts of SPLIT keys, at absolute multiples of it.
fn part_of(keys: Keys, low: i32, tile: i32) -> Part {
    let split = (keys.start + low) / SPLIT + tile;
    let begins = max(split * SPLIT - keys.start, low);
    let ends = min((split + 1) * SPLIT - keys.start, keys.slots);
    return Part(begins, ends, u32(tile), tile == 0 || begins < keys.slots);
}

fn end_part(number: u32, sequences: u32, lane: u32, count: u32) {}
