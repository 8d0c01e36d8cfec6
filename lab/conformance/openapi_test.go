package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"holdfast/lab/harness"
)

const contractBase = "/holdfast/v1"

// contract is brokerapi/httpapi/openapi.yaml.
type contract struct {
	doc        any
	compiler   *jsonschema.Compiler
	operations map[string]*operation // "GET /health"
}

type operation struct {
	at        []string // where it is in the document
	id, tag   string
	params    map[string]bool
	request   *content          // nil: no body
	responses map[int]*response // by status
}

type response struct {
	contents map[string]*content // by media type
}

type content struct {
	schema   *jsonschema.Schema
	examples map[string]any
}

// loadContract fails the test unless the document is complete in itself: that it is a
// valid OpenAPI 3.1 document is checked as far as this contract uses the format.
func loadContract(t *testing.T) *contract {
	t.Helper()
	root, err := harness.Root()
	do(t, err)
	text, err := os.ReadFile(filepath.Join(root, "brokerapi", "httpapi", "openapi.yaml"))
	do(t, err)
	var tree any
	do(t, yaml.Unmarshal(text, &tree))
	plain, err := json.Marshal(tree) // numbers and maps as JSON has them
	do(t, err)
	c := &contract{compiler: jsonschema.NewCompiler(), operations: map[string]*operation{}}
	if c.doc, err = jsonschema.UnmarshalJSON(bytes.NewReader(plain)); err != nil {
		t.Fatal(err)
	}
	c.compiler.DefaultDraft(jsonschema.Draft2020) // the dialect of OpenAPI 3.1
	c.compiler.AssertFormat()
	do(t, c.compiler.AddResource("contract", c.doc))
	if v, _ := c.at(t, "openapi").(string); v != "3.1.0" {
		t.Errorf("openapi is %q", v)
	}
	for _, must := range []string{"title", "version"} {
		if v, _ := c.at(t, "info", must).(string); v == "" {
			t.Errorf("info has no %s", must)
		}
	}
	known := []string{"openapi", "info", "servers", "security", "tags", "paths", "components"}
	for key := range c.doc.(map[string]any) {
		if !slices.Contains(known, key) {
			t.Errorf("%s is no field of an OpenAPI document", key)
		}
	}
	for name := range c.at(t, "components", "schemas").(map[string]any) {
		c.schema(t, "components", "schemas", name)
	}
	ids := map[string]bool{}
	for path, item := range c.at(t, "paths").(map[string]any) {
		for method := range item.(map[string]any) {
			o := c.operation(t, path, method)
			if o.id == "" || ids[o.id] {
				t.Errorf("%s %s: operationId %q is empty or there twice", method, path, o.id)
			}
			ids[o.id] = true
			c.operations[strings.ToUpper(method)+" "+path] = o
		}
	}
	return c
}

// at follows keys and references.
func (c *contract) at(t *testing.T, keys ...string) any {
	t.Helper()
	v := c.doc
	for _, key := range keys {
		m, ok := v.(map[string]any)
		if !ok || m[key] == nil {
			t.Fatalf("the contract has no %s", strings.Join(keys, "/"))
		}
		v = m[key]
		if m, ok := v.(map[string]any); ok {
			if ref, ok := m["$ref"].(string); ok {
				v = c.at(t, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
			}
		}
	}
	return v
}

func (c *contract) schema(t *testing.T, keys ...string) *jsonschema.Schema {
	t.Helper()
	pointer := "contract#"
	for _, key := range keys {
		pointer += "/" + strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
	}
	s, err := c.compiler.Compile(pointer)
	if err != nil {
		t.Fatalf("schema %s: %v", strings.Join(keys, "/"), err)
	}
	return s
}

func (c *contract) operation(t *testing.T, path, method string) *operation {
	t.Helper()
	at := []string{"paths", path, method}
	fields := c.at(t, at...).(map[string]any)
	o := &operation{at: at, params: map[string]bool{}, responses: map[int]*response{}}
	o.id, _ = fields["operationId"].(string)
	o.tag, _ = fields["tags"].([]any)[0].(string)
	if fields["summary"] == nil || !slices.Contains([]string{"get", "put", "post"}, method) {
		t.Errorf("%s %s: no summary, or an unknown method", method, path)
	}
	params, _ := fields["parameters"].([]any)
	for _, p := range params {
		p := p.(map[string]any)
		if p["in"] != "query" || p["schema"] == nil {
			t.Errorf("%s %s: parameter %v", method, path, p)
		}
		o.params[p["name"].(string)] = true
	}
	if fields["requestBody"] != nil {
		contents := c.contents(t, append(slices.Clone(at), "requestBody"))
		if o.request = contents["application/json"]; o.request == nil || len(contents) != 1 {
			t.Errorf("%s %s: want a request of application/json", method, path)
		}
	}
	for status := range c.at(t, append(slices.Clone(at), "responses")...).(map[string]any) {
		where := append(slices.Clone(at), "responses", status)
		if d, _ := c.at(t, where...).(map[string]any)["description"].(string); d == "" {
			t.Errorf("%s %s: status %s has no description", method, path, status)
		}
		var n int
		if _, err := fmt.Sscanf(status, "%3d", &n); err != nil || n < 200 || n > 599 {
			t.Errorf("%s %s: status %q", method, path, status)
		}
		o.responses[n] = &response{c.contents(t, where)}
	}
	return o
}

// contents are the bodies of a request or response; each example is one of its schema.
func (c *contract) contents(t *testing.T, where []string) map[string]*content {
	t.Helper()
	// The pointer of a schema must not lead through a reference.
	if ref, ok := c.raw(where)["$ref"].(string); ok {
		where = strings.Split(strings.TrimPrefix(ref, "#/"), "/")
	}
	all := map[string]*content{}
	for kind, fields := range c.at(t, append(slices.Clone(where), "content")...).(map[string]any) {
		one := &content{schema: c.schema(t, append(slices.Clone(where), "content", kind, "schema")...), examples: map[string]any{}}
		examples, _ := fields.(map[string]any)["examples"].(map[string]any)
		for name, e := range examples {
			one.examples[name] = e.(map[string]any)["value"]
			if err := one.schema.Validate(one.examples[name]); err != nil {
				t.Errorf("%s: example %s: %v", strings.Join(where, " "), name, err)
			}
		}
		all[kind] = one
	}
	return all
}

// raw is a part of the document whose own reference is not followed.
func (c *contract) raw(keys []string) map[string]any {
	v := c.doc
	for _, key := range keys {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	m, _ := v.(map[string]any)
	return m
}

// checkJSON says how a body is not what the schema says.
func (o *content) checkJSON(text []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	return o.schema.Validate(v)
}

func TestTheContractIsCompleteAndItsExamplesAreOfTheirSchemas(t *testing.T) {
	c := loadContract(t)
	want := []string{
		"GET /health", "GET /identity", "GET /topics",
		"POST /topics/accept", "POST /topics/compare", "POST /topics/copy", "POST /topics/extent", "POST /topics/load", "POST /topics/quiesce",
		"POST /topics/remove", "POST /topics/resume", "POST /topics/seal", "POST /topics/unload", "PUT /mode",
	}
	if got := slices.Sorted(maps.Keys(c.operations)); !slices.Equal(got, want) {
		t.Errorf("operations %q, want %q", got, want)
	}
	for name, o := range c.operations {
		for status, r := range o.responses {
			if status >= 300 {
				if _, ok := r.contents["application/json"]; !ok {
					t.Errorf("%s: %d is not an Error", name, status)
				}
			} else if len(r.contents) != 1 || exampleCount(r) == 0 {
				t.Errorf("%s: %d has no example", name, status)
			}
		}
		for _, must := range []int{401, 500, 503} {
			if o.responses[must] == nil {
				t.Errorf("%s: says nothing of %d", name, must)
			}
		}
	}
}

func exampleCount(r *response) (n int) {
	for _, c := range r.contents {
		n += len(c.examples)
	}
	return n
}
