package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"holdfast/agent/config"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	fenced   = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	nameOnly = regexp.MustCompile(`^--([a-z-]+)$`)
)

// pages lists README and the pages about brokers.
func pages(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob("docs/brokers/*.md")
	if err != nil || len(list) != len(config.DriverNames()) {
		t.Fatalf("pages %v (%v), want one for each driver", list, err)
	}
	return append(list, "README.md")
}

// runCommand takes the flags of a 'holdfast run' apart; ok is false if it is none, or shortened.
func runCommand(block string) (set map[string][]string, cmd []string, ok bool) {
	line, ok := strings.CutPrefix(strings.ReplaceAll(block, "\\\n", " "), "holdfast run ")
	if !ok || strings.Contains(line, "…") {
		return nil, nil, false
	}
	words := strings.Fields(line)
	set = map[string][]string{}
	for i := 0; i < len(words); i++ {
		if words[i] == "--" {
			return set, words[i+1:], true
		}
		name := nameOnly.FindStringSubmatch(words[i])
		if name == nil {
			return nil, nil, false
		}
		value := "true"
		if i+1 < len(words) && !strings.HasPrefix(words[i+1], "--") {
			i++
			value = strings.Trim(words[i], "'")
		}
		set[name[1]] = append(set[name[1]], value)
	}
	return set, nil, true
}

func TestTheSettingsOnThePagesAreValid(t *testing.T) {
	for _, page := range pages(t) {
		files, commands := 0, 0
		for _, block := range fenced.FindAllStringSubmatch(read(t, page), -1) {
			src := config.Sources{}
			switch set, cmd, ok := runCommand(block[2]); {
			case block[1] == "yaml":
				files++
				src.File, src.Read = page, func(string) ([]byte, error) { return []byte(block[2]), nil }
			case ok:
				commands++
				src.Flags, src.Command = set, cmd
			default:
				continue
			}
			if _, err := config.Load(src); err != nil {
				t.Errorf("%s: %v in\n%s", page, err, block[2])
			}
		}
		if page != "README.md" && files == 0 || commands == 0 {
			t.Errorf("%s: %d files of settings, %d commands, want some of each", page, files, commands)
		}
	}
}

// The first file of settings on a page is the first command as a file.
func TestTheFileOfAPageSaysWhatItsCommandSays(t *testing.T) {
	for _, page := range pages(t) {
		var fromFile, fromFlags *config.Config
		for _, block := range fenced.FindAllStringSubmatch(read(t, page), -1) {
			if set, cmd, ok := runCommand(block[2]); ok && fromFlags == nil {
				c, err := config.Load(config.Sources{Flags: set, Command: cmd})
				if err != nil {
					t.Fatal(err)
				}
				fromFlags = &c
			}
			if block[1] == "yaml" && fromFile == nil {
				c, err := config.Load(config.Sources{File: page, Read: func(string) ([]byte, error) { return []byte(block[2]), nil }})
				if err != nil {
					t.Fatal(err)
				}
				fromFile = &c
			}
		}
		if fromFile != nil && fromFlags != nil && !sameSettings(*fromFile, *fromFlags) {
			t.Errorf("%s: the file is\n%+v\nand the command\n%+v", page, *fromFile, *fromFlags)
		}
	}
}

// sameSettings compares what is exported: where a setting came from does not matter.
func sameSettings(a, b config.Config) bool {
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	for _, f := range reflect.VisibleFields(va.Type()) {
		if f.IsExported() && !reflect.DeepEqual(va.FieldByIndex(f.Index).Interface(), vb.FieldByIndex(f.Index).Interface()) {
			return false
		}
	}
	return true
}
