// Pages to read, as the importing codec's chunks.
@group(0) @binding(1) var<storage, read> pages: array<Chunk>;
