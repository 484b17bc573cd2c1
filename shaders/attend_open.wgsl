// The slots of a sequence in two: those before open_slot are closed, their pages do not change any more.
override OPEN: i32;  // how often that moves on; a multiple of PAGE_TOKENS

fn open_slot(keys: Keys, low: i32) -> i32 {
    let last = keys.start + keys.slots - 1;
    let short = last / SPLIT == (keys.start + low) / SPLIT;
    return select(max(last / OPEN * OPEN - keys.start, low), low, short);
}
