// Splits of SPLIT keys, at absolute multiples of it; as attend_part_split numbers them.
#import page_table
override PAGE_TOKENS: u32 = 16;
override WINDOW: i32 = 0;
override SPLIT: i32;

fn splits_of(sequence: u32, sequences: u32) -> u32 {
    let keys = keys_of(sequence, sequences);
    let low = slot_of_key(keys, select(0, max(keys.length - WINDOW, 0), WINDOW > 0));
    let tiles = (keys.start + keys.slots - 1) / SPLIT - (keys.start + low) / SPLIT + 1;
    return select(0u, u32(max(tiles, 0)), keys.length > 0);
}
