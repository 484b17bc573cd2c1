// The last token is none of the slots that are attended to here.
const PUTS = false;

fn put_token(at: vec2<u32>, head: u32, lane: u32) {}
