package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"
)

// decode is json.Unmarshal for a text in which everything can be read in one way only.
func decode(text []byte, v any) error {
	if !utf8.Valid(text) {
		return errors.New("is not UTF-8")
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return errors.New("is empty, want JSON")
	}
	var whole json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil { // also bounds the depth
		return err
	}
	if string(bytes.TrimSpace(text)) == "null" {
		return errors.New("is null")
	}
	if err := checkNames(text, reflect.TypeOf(v).Elem().Kind() == reflect.Map); err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// checkNames refuses an object in which a name stands twice. Package json takes the last
// one, others the first; and it takes names for the same that differ in case only, but for
// those of a map, as which the outermost object is read here.
func checkNames(text []byte, isMap bool) error {
	type object map[string]bool // nil: an array
	var open []object
	key := false // the next token is a name
	dec := json.NewDecoder(bytes.NewReader(text))
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch t := token.(type) {
		case json.Delim:
			switch t {
			case '{':
				open = append(open, object{})
			case '[':
				open = append(open, nil)
			default:
				open = open[:len(open)-1]
			}
			key = len(open) > 0 && open[len(open)-1] != nil
			continue
		case string:
			if key {
				names, folded := open[len(open)-1], strings.ToUpper(strings.ToLower(t))
				if isMap && len(open) == 1 {
					folded = t
				}
				if names[folded] {
					return fmt.Errorf("has the name %q twice", shown(t, 40))
				}
				names[folded] = true
				key = false
				continue
			}
		}
		key = len(open) > 0 && open[len(open)-1] != nil
	}
}
