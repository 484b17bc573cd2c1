// Part of top_k.wgsl: logsumexp of a row from its blocks' (key, sum), in the same order every time.

fn largest_key() -> u32 {
  var mine = 0u;
  for (var b = lane; b < BLOCKS; b += LANES) {
    mine = max(mine, blocks[row * BLOCKS + b].x);
  }
  atomicMax(&counter, mine);
  workgroupBarrier();
  if (lane == 0) {
    counted = atomicExchange(&counter, 0u);
  }
  return workgroupUniformLoad(&counted);
}

// log of the sum of exp of the row's logits.
fn log_sum_exp() -> f32 {
  let largest = largest_key();
  var sum = 0.0;
  for (var b = lane; b < BLOCKS; b += LANES) {
    let block = blocks[row * BLOCKS + b];
    let weight = exp(value_of(block.x) - value_of(largest));
    sum += select(0.0, bitcast<f32>(block.y) * weight, block.x > NEGATIVE_INFINITY);
  }
  partial[lane] = sum;
  for (var half = LANES / 2; half > 0; half = half / 2) {
    workgroupBarrier();
    if (lane < half) {
      partial[lane] += partial[lane + half];
    }
  }
  workgroupBarrier();
  return select(value_of(0u), value_of(largest) + log(partial[0]), largest > NEGATIVE_INFINITY);
}
