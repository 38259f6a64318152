// The timeline as render/timeline.py draws it, for the part of the step that the reader zooms to.
{
  const WIDTH = 1000, COLUMNS = 500, HEAD = 28, BRACKET = 14, BAR = 26, SAID = 56, LETTER = 6.6, TIGHT = 3, APART = 8, SHORTEST = 0.05;
  const svg = document.querySelector("svg.timeline");
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const whole = Math.max(...data.arms.map(arm => arm.length));
  const room = WIDTH - data.left;
  let view = [0, whole];

  for (const arm of data.arms) for (const lane of arm.lanes) {
    let at = 0;
    lane.start = lane.start.map(step => (at += step) / 1e3);
    lane.end = lane.dur.map((dur, i) => lane.start[i] + dur / 1e3);
    lane.runs = runs(lane);
  }

  function runs(lane) {
    const found = [], last = new Map();
    lane.group.forEach((group, i) => {
      if (group < 0) return;
      let [before, run] = last.get(group) || [-APART - 2, null];
      if (i - before > APART + 1) found.push(run = [group, lane.start[i], 0]);
      run[2] = Math.max(run[2], lane.end[i]);
      last.set(group, [i, run]);
    });
    return found;
  }

  const spell = us => us >= 999995 ? `${(us / 1e6).toFixed(2)} s` : us >= 9999.5 ? `${(us / 1e3).toFixed(1)} ms`
    : us > 0 && us < 1 ? `${us.toFixed(2)} µs` : `${us.toFixed(1)} µs`;

  function node(name, attributes, words) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (words) made.textContent = words;
    return made;
  }

  function box(x, y, width, height, classes, said) {
    const made = node("rect", {x: x.toFixed(2), y, width: Math.max(width, 0.4).toFixed(2), height, class: classes});
    if (said) made.append(node("title", {}, said));
    return made;
  }

  const write = (x, y, words, classes, anchor = "start") =>
    node("text", {x: x.toFixed(1), y, class: classes, "text-anchor": anchor}, words);

  function ticks(low, high) {
    const [unit, per] = high >= 9999.5e3 ? ["s", 1e-6] : high >= 9999.5 ? ["ms", 1e-3] : ["µs", 1];
    const rough = (high - low) * per / 6, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(n => n * power).find(size => size >= rough);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const marks = [];
    for (let n = Math.ceil(low * per / step - 1e-9); n * step <= high * per + 1e-9; n++)
      marks.push([n * step / per, `${(n * step).toFixed(digits)} ${unit}`]);
    return marks;
  }

  function draw() {
    const [from, to] = view, scale = room / (to - from);
    const at = time => data.left + (Math.min(Math.max(time, from), to) - from) * scale;
    const body = [], marks = ticks(from, to);
    let y = 0;
    const bottom = data.arms.reduce((sum, arm) => sum + (arm.name ? HEAD : 0) + (BRACKET + BAR) * arm.lanes.length, 0);
    for (const [time] of marks) body.push(node("path", {class: "grid", d: `M${at(time).toFixed(2)} 0V${bottom}`}));
    for (const arm of data.arms) {
      if (arm.name) {
        body.push(write(0, y + 20, arm.name, "arm"), write(SAID, y + 20, arm.said, "tick"));
        y += HEAD;
      }
      for (const lane of arm.lanes) {
        if (data.left) body.push(write(0, y + BRACKET + 17, lane.name, "tick"));
        if (arm.length > from) body.push(box(data.left, y + BRACKET, at(arm.length) - data.left, BAR, "track"));
        const seen = [];
        lane.start.forEach((start, i) => { if (start < to && lane.end[i] > from) seen.push(i); });
        brackets(body, arm, lane, at, y);
        (seen.length > COLUMNS ? columns : bars)(body, lane, seen, at, y + BRACKET);
        y += BRACKET + BAR;
      }
    }
    for (const [time, said] of marks) {
      const x = at(time);
      const anchor = x === data.left && !time ? "start" : x > WIDTH - 30 ? "end" : "middle";
      body.push(write(x, bottom + 14, said, "tick", anchor));
    }
    svg.replaceChildren(...body);
  }

  function bars(body, lane, seen, at, y) {
    for (const i of seen) {
      const x = at(lane.start[i]), width = at(lane.end[i]) - x;
      const kind = data.kinds[lane.kind[i]], [label, name] = data.texts[lane.text[i]];
      body.push(box(x, y, width, BAR, `k k-${kind}`, `${name}\n${spell(lane.dur[i] / 1e3)}`));
      if (label.length * LETTER + 8 <= width)
        body.push(write(x + width / 2, y + 17, label, `in in-${kind}`, "middle"));
    }
  }

  function columns(body, lane, seen, at, y) {
    const width = room / COLUMNS, kinds = data.kinds.length;
    const filled = new Float64Array(COLUMNS * kinds);
    for (const i of seen) {
      const start = at(lane.start[i]) - data.left, end = at(lane.end[i]) - data.left;
      for (let c = Math.floor(start / width); c <= Math.min(Math.floor(end / width), COLUMNS - 1); c++)
        filled[c * kinds + lane.kind[i]] += Math.max(Math.min(end, (c + 1) * width) - Math.max(start, c * width), 0);
    }
    for (let c = 0; c < COLUMNS; c++) {
      const own = filled.subarray(c * kinds, (c + 1) * kinds), sum = own.reduce((a, b) => a + b, 0);
      const share = Math.min(sum / width, 1), most = own.indexOf(Math.max(...own));
      if (sum > 0)
        body.push(box(data.left + c * width, y + BAR * (1 - share), width, BAR * share, `k k-${data.kinds[most]}`));
    }
  }

  function brackets(body, arm, lane, at, y) {
    const drawn = [];
    for (const [group, start, end] of lane.runs) {
      if (end <= view[0] || start >= view[1]) continue;
      const a = at(start), b = at(end), last = drawn.at(-1);
      if (last && a - last[1] < TIGHT && Math.min(b - a, last[1] - last[0]) < TIGHT)
        drawn[drawn.length - 1] = [last[0], Math.max(b, last[1]), -1];
      else drawn.push([a, b, group]);
    }
    for (const [a, b, group] of drawn) {
      const rule = fitting(arm.rules[group] || "", b - a);
      const top = `M${(a + 0.75).toFixed(2)} ${y + 12}v-5H`;
      if (rule) {
        const middle = (a + b) / 2, half = rule.length * LETTER / 2 + 3;
        const d = `${top}${(middle - half).toFixed(2)}M${(middle + half).toFixed(2)} ${y + 7}H${(b - 0.75).toFixed(2)}v5`;
        body.push(node("path", {class: "bracket", d}), write(middle, y + 11, rule, "rule", "middle"));
      } else {
        body.push(node("path", {class: "bracket", d: `${top}${Math.max(b - 0.75, a + 1.75).toFixed(2)}v5`}));
      }
    }
  }

  function fitting(rules, width) {
    const [first, ...others] = rules.split(", ");
    const said = others.length ? [rules, `${first} +${others.length}`] : [rules];
    return said.find(words => words && words.length * LETTER + 14 <= width) || "";
  }

  function show(from, to) {
    const width = Math.min(Math.max(to - from, SHORTEST), whole);
    const start = Math.min(Math.max(from, 0), whole - width);
    view = [start, start + width];
    draw();
    note.textContent = width < whole ? `${spell(view[0])} to ${spell(view[1])}` : hint;
  }

  function zoom(factor, around = (view[0] + view[1]) / 2) {
    show(around - (around - view[0]) * factor, around + (view[1] - around) * factor);
  }

  function move(share) {
    show(view[0] + share * (view[1] - view[0]), view[1] + share * (view[1] - view[0]));
  }

  const bar = document.createElement("p"), note = document.createElement("span");
  const hint = "Drag over a part to zoom in; point at a bar for what it is.";
  bar.className = "controls";
  note.className = "soft";
  note.textContent = hint;
  const actions = [["+", "zoom in", () => zoom(0.5)], ["−", "zoom out", () => zoom(2)], ["◀", "earlier", () => move(-0.25)],
    ["▶", "later", () => move(0.25)], ["all", "the whole step", () => show(0, whole)]];
  for (const [sign, name, act] of actions) {
    const button = document.createElement("button");
    button.textContent = sign;
    button.title = name;
    button.setAttribute("aria-label", name);
    button.addEventListener("click", act);
    bar.append(button);
  }
  bar.append(note);
  svg.closest(".scroll").before(bar);

  const time = event => {
    const place = svg.getBoundingClientRect();
    const x = (event.clientX - place.left) / place.width * WIDTH - data.left;
    return view[0] + Math.min(Math.max(x, 0), room) / room * (view[1] - view[0]);
  };
  let began = null, mark = null;
  svg.addEventListener("pointerdown", event => {
    if (event.pointerType === "touch" || event.button) return;  // a finger scrolls
    began = time(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", event => {
    if (began === null) {
      const said = event.target.querySelector?.("title");
      if (said) note.textContent = said.textContent.replaceAll("\n", " · ");
      return;
    }
    const [a, b] = [began, time(event)].sort((x, y) => x - y), scale = room / (view[1] - view[0]);
    mark?.remove();
    mark = box(data.left + (a - view[0]) * scale, 0, (b - a) * scale, svg.viewBox.baseVal.height, "mark");
    svg.append(mark);
  });
  svg.addEventListener("pointerup", event => {
    if (began === null) return;
    const [a, b] = [began, time(event)].sort((x, y) => x - y);
    mark?.remove();
    began = mark = null;
    if ((b - a) / (view[1] - view[0]) > 0.005) show(a, b);
  });
  svg.addEventListener("dblclick", () => show(0, whole));
  svg.addEventListener("wheel", event => {
    if (!event.ctrlKey && !event.metaKey) return;  // the wheel alone scrolls the page
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, time(event));
  }, {passive: false});
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("keydown", event => {
    const act = {"+": 0, "=": 0, "-": 1, ArrowLeft: 2, ArrowRight: 3, "0": 4, Escape: 4}[event.key];
    if (act === undefined || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[act][2]();
  });
}
