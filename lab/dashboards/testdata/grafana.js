// Reads the dashboards given as arguments with Grafana's own library and prints what it
// makes of them otherwise than meant, one line each, and "asked: N" at the end.
//
// Needs @grafana/data and jsdom (make grafana-library): the library is written for browsers.
const fs = require('fs');
const { JSDOM } = require('jsdom');

const { window } = new JSDOM('<!doctype html>', { url: 'http://localhost/' });
globalThis.window = window;
for (const key of Object.getOwnPropertyNames(window)) {
  if (!(key in globalThis)) {
    globalThis[key] = window[key];
  }
}
const grafana = require('@grafana/data');

const byID = new Map(Object.values(grafana.standardTransformers).map((t) => [t.id, t]));
grafana.standardTransformersRegistry.setInit(() =>
  [...byID.values()].map((t) => ({ id: t.id, name: t.name, description: '', transformation: t, editor: null })));
const themes = ['dark', 'light'].map((mode) => grafana.createTheme({ colors: { mode } }));
const units = grafana.getValueFormats().flatMap((c) => c.submenu).map((s) => s.value);

let asked = 0;
const complaints = [];
function expect(holds, ...words) {
  asked++;
  if (!holds) {
    complaints.push(words.join(' '));
  }
}

// shown is how a value of a panel is shown.
const shown = (config, value) => grafana.getDisplayProcessor({ field: { type: 'number', config }, theme: themes[0] })(value);

// rows are what Prometheus' data source answers to the queries of a table: one frame for
// each, with a column for each label.
function rows(panel, labels) {
  return panel.targets.map((t, i) => grafana.toDataFrame({
    refId: t.refId,
    fields: [
      { name: 'Time', type: 'time', config: {}, values: [1000, 1000] },
      ...labels.map((l) => ({ name: l, type: 'string', config: {}, values: [l + ' 1', l + ' 2'] })),
      { name: panel.targets.length > 1 ? 'Value #' + t.refId : 'Value', type: 'number', config: {}, values: [i, i + 1000] },
    ],
  }));
}

async function table(panel, labels) {
  const { renameByName, indexByName } = panel.transformations[1].options;
  const frames = await new Promise((resolve, error) =>
    grafana.transformDataFrame(panel.transformations, rows(panel, labels)).subscribe({ next: resolve, error }));
  expect(frames.length === 1 && frames[0].length === 2, panel.title, 'becomes', frames.length, 'tables, the first with', frames[0].length, 'lines');
  const names = frames[0].fields.map((f) => grafana.getFieldDisplayName(f, frames[0], frames));
  const want = Object.keys(indexByName).sort((a, b) => indexByName[a] - indexByName[b])
    .filter((n) => renameByName[n] || labels.includes(n)).map((n) => renameByName[n] || n);
  expect(names.join() === want.join(), panel.title, 'has the columns', names, 'not', want);
}

// series are the answers of the panel's queries, with every result that has a colour.
const results = ['ok', 'error', 'timeout', 'dropped', 'refused', 'abandoned', 'confirmed', 'failed', 'lost', 'established'];
function series(panel) {
  return panel.targets.flatMap((t) => results.map((r) => grafana.toDataFrame({
    refId: t.refId,
    fields: [
      { name: 'Time', type: 'time', config: {}, values: [1] },
      { name: 'Value', type: 'number', values: [1], config: {
        displayNameFromDS: t.legendFormat.replace('{{instance}}', 'n1').replace('{{result}}', r),
      } },
    ],
  })));
}

function overrides(panel) {
  const frames = panel.type === 'table'
    ? [grafana.toDataFrame({ fields: Object.keys(panel.transformations[1].options.indexByName).map((n) => (
      { name: panel.transformations[1].options.renameByName[n] || n, type: 'number', config: {}, values: [1] })) })]
    : series(panel);
  for (const o of panel.fieldConfig.overrides) {
    const matches = grafana.fieldMatchers.get(o.matcher.id).get(o.matcher.options);
    expect(frames.some((f) => f.fields.some((field) => matches(field, f, frames))), panel.title, 'overrides nothing with', JSON.stringify(o.matcher));
    for (const p of o.properties.filter((p) => p.id === 'mappings')) {
      words(panel.title, { mappings: p.value, unit: 'none' });
    }
  }
}

// words checks that each value that is mapped has its word, and a colour in both themes.
function words(title, config) {
  for (const m of config.mappings || []) {
    for (const [value, want] of Object.entries(m.options)) {
      expect(shown(config, Number(value)).text === want.text, title, 'shows', value, 'as', shown(config, Number(value)).text);
      for (const theme of themes) {
        expect(/^(#|rgb)/.test(theme.visualization.getColorByName(want.color)), title, 'has no colour', want.color);
      }
    }
  }
}

(async () => {
  for (const file of process.argv.slice(2)) {
    const board = JSON.parse(fs.readFileSync(file));
    for (const panel of board.panels.filter((p) => p.type !== 'row')) {
      expect(units.includes(panel.fieldConfig.defaults.unit), panel.title, 'has the unit', panel.fieldConfig.defaults.unit);
      words(panel.title, panel.fieldConfig.defaults);
      overrides(panel);
      if (panel.type === 'table') {
        const labels = Object.keys(panel.transformations[1].options.indexByName).filter((n) => !n.startsWith('Value'));
        await table(panel, labels);
        await table(panel, labels.filter((l) => l !== 'cluster'));
      }
    }
  }
  complaints.forEach((c) => console.log('complaint: ' + c));
  console.log('asked: ' + asked);
})();
