// The table of WebGPU objects behind webkv/gpu/browser_*.py.  Python holds numbers, JavaScript the objects:
// one crossing per call, no proxy per object, and a whole pass of commands is replayed by one call of `submit`.
// The value of this script is the table's functions.  They throw; Python turns what is thrown into wgpu's errors.
(() => {
  "use strict";
  const objects = [null];
  const free = [];

  const put = (object) => {
    const number = free.length ? free.pop() : objects.length;
    objects[number] = object;
    return number;
  };

  // Commands as 32-bit words: a code, then its operands (objects by number).  Keep in step with browser_commands.py.
  const replay = (device, words) => {
    const done = [];
    let encoder = null;
    let pass = null;
    for (let i = 0; i < words.length; ) {
      switch (words[i]) {
        case 0:
          encoder = device.createCommandEncoder();
          i += 1;
          break;
        case 1: {
          const [, set, begin, end] = words.subarray(i, i + 4);
          const stamps = set && { querySet: objects[set] };
          if (set && begin) stamps.beginningOfPassWriteIndex = begin - 1;
          if (set && end) stamps.endOfPassWriteIndex = end - 1;
          pass = encoder.beginComputePass(set ? { timestampWrites: stamps } : {});
          i += 4;
          break;
        }
        case 2:
          pass.end();
          i += 1;
          break;
        case 3:
          pass.setPipeline(objects[words[i + 1]]);
          i += 2;
          break;
        case 4: {
          const count = words[i + 3];
          if (count) pass.setBindGroup(words[i + 1], objects[words[i + 2]], words.slice(i + 4, i + 4 + count));
          else pass.setBindGroup(words[i + 1], objects[words[i + 2]]);
          i += 4 + count;
          break;
        }
        case 5:
          pass.dispatchWorkgroups(words[i + 1], words[i + 2], words[i + 3]);
          i += 4;
          break;
        case 6:
          pass.dispatchWorkgroupsIndirect(objects[words[i + 1]], words[i + 2]);
          i += 3;
          break;
        case 7:
          encoder.copyBufferToBuffer(
            objects[words[i + 1]], words[i + 2], objects[words[i + 3]], words[i + 4], words[i + 5]);
          i += 6;
          break;
        case 8:
          encoder.clearBuffer(objects[words[i + 1]], words[i + 2], words[i + 3]);
          i += 4;
          break;
        case 9:
          encoder.resolveQuerySet(
            objects[words[i + 1]], words[i + 2], words[i + 3], objects[words[i + 4]], words[i + 5]);
          i += 6;
          break;
        case 10:
          done.push(encoder.finish());
          i += 1;
          break;
        default:
          throw new Error(`no command has code ${words[i]}`);
      }
    }
    return done;
  };

  const pipeline = (label, layout, module, entryPoint, constants) => ({
    label,
    layout: layout ? objects[layout] : "auto",
    compute: { module: objects[module], entryPoint: entryPoint || undefined, constants: JSON.parse(constants) },
  });

  // A getBuffer view must not outlive the call: the wasm heap may move when Python allocates.
  const withView = (proxy, type, use) => {
    const view = proxy.getBuffer(type);
    try {
      return use(view.data);
    } finally {
      view.release();
    }
  };

  return {
    available: () => globalThis.navigator?.gpu !== undefined,
    adapter: async (powerPreference, forceFallbackAdapter) => {
      const options = { forceFallbackAdapter };
      if (powerPreference) options.powerPreference = powerPreference;
      const found = await navigator.gpu.requestAdapter(options);
      return found ? put(found) : 0;
    },
    about: (number) => {
      const { features, limits, info, adapterInfo } = objects[number];
      const pick = (o, wanted) => {
        const out = {};
        for (const key in o) if (typeof o[key] === wanted || wanted === "any") out[key] = o[key];
        return out;
      };
      return JSON.stringify({
        features: [...features], limits: pick(limits, "number"), info: pick(info ?? adapterInfo, "any"),
      });
    },
    device: async (adapter, label, features, limits) =>
      put(await objects[adapter].requestDevice({
        label, requiredFeatures: JSON.parse(features), requiredLimits: JSON.parse(limits),
      })),
    watch: (device, onLost, onError) => {
      objects[device].lost.then((info) => onLost(info.reason ?? "unknown", info.message));
      objects[device].addEventListener("uncapturederror", (event) => {
        event.preventDefault();
        onError(event.error.constructor.name, event.error.message);
      });
    },
    pushScope: (device, filter) => objects[device].pushErrorScope(filter),
    popScope: async (device) => {
      const error = await objects[device].popErrorScope();
      return error ? JSON.stringify([error.constructor.name, error.message]) : "null";
    },
    buffer: (device, label, size, usage, mappedAtCreation) =>
      put(objects[device].createBuffer({ label, size, usage, mappedAtCreation })),
    shader: (device, label, code) => put(objects[device].createShaderModule({ label, code })),
    groupLayout: (device, label, entries) =>
      put(objects[device].createBindGroupLayout({ label, entries: JSON.parse(entries) })),
    pipelineLayout: (device, label, layouts) => put(objects[device].createPipelineLayout({
      label, bindGroupLayouts: JSON.parse(layouts).map((number) => objects[number]),
    })),
    pipeline: (device, ...rest) => put(objects[device].createComputePipeline(pipeline(...rest))),
    pipelineAsync: async (device, ...rest) =>
      put(await objects[device].createComputePipelineAsync(pipeline(...rest))),
    layoutOf: (pipelineNumber, index) => put(objects[pipelineNumber].getBindGroupLayout(index)),
    // `flat`: binding, buffer, offset, size (0 = to the end) per entry, as doubles.
    group: (device, label, layout, flat) => withView(flat, "f64", (v) => {
      const entries = [];
      for (let i = 0; i < v.length; i += 4) {
        const resource = { buffer: objects[v[i + 1]], offset: v[i + 2], size: v[i + 3] || undefined };
        entries.push({ binding: v[i], resource });
      }
      return put(objects[device].createBindGroup({ label, layout: objects[layout], entries }));
    }),
    querySet: (device, label, type, count) => put(objects[device].createQuerySet({ label, type, count })),
    submit: (device, words) =>
      withView(words, "u32", (v) => objects[device].queue.submit(replay(objects[device], v))),
    write: (device, buffer, offset, data) =>
      withView(data, "u8", (v) => objects[device].queue.writeBuffer(objects[buffer], offset, v)),
    done: (device) => objects[device].queue.onSubmittedWorkDone(),
    map: (buffer, mode, offset, size) => objects[buffer].mapAsync(mode, offset, size),
    range: (buffer, offset, size) => objects[buffer].getMappedRange(offset, size),
    unmap: (buffer) => objects[buffer].unmap(),
    destroy: (number) => objects[number].destroy(),
    object: (number) => objects[number],
    forget: (number) => {
      objects[number] = null;
      free.push(number);
    },
  };
})();
