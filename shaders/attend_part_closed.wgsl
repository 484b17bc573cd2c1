// Parts of SPLIT closed keys, at absolute multiples of it.
#import open

fn part_of(keys: Keys, low: i32, tile: i32) -> Part {
    let split = (keys.start + low) / SPLIT + tile;
    let begins = max(split * SPLIT - keys.start, low);
    let ends = min((split + 1) * SPLIT - keys.start, open_slot(keys, low));
    return Part(begins, ends, u32(tile), begins < ends);
}

fn end_part(number: u32, sequences: u32, lane: u32, count: u32) {}
