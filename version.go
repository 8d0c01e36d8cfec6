package main

import (
	"runtime"
	"runtime/debug"
)

// buildVersion is set by the linker: -X main.buildVersion=v1.2.3
var buildVersion string

// version is the linker's word, else the module's or the revision's.
func version() string {
	if buildVersion != "" {
		return buildVersion
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}

func versionText() string { return version() + " (" + runtime.Version() + ")" }
