package main

import (
	"encoding/json"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
)

// themes is what Grafana draws for the names, in the dark and in the light theme.
var themes = map[string]map[string]string{
	"dark":  {good: "#5794F2", watch: "#FF9830", bad: "#E02F44", aside: "#DEB6F2", blank: blank},
	"light": {good: "#3274D9", watch: "#FF780A", bad: "#C4162A", aside: "#CA95E5", blank: blank},
}

// eyes turn linear sRGB into what is seen: Machado, Oliveira and Fernandes, 2009, severity 1.
var eyes = map[string][3][3]float64{
	"trichromat":  {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"protanope":   {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	"deuteranope": {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
	"tritanope":   {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
}

// farApart is a distance in CIELAB at which two areas side by side are told apart with
// ease; 2.3 is just noticeable. Green beside red has 8 for a deuteranope.
const farApart = 20

func TestNoTwoMeaningsLookAlike(t *testing.T) {
	meanings := []string{good, watch, bad, aside, blank}
	for theme, hex := range themes {
		for eye, matrix := range eyes {
			for i, a := range meanings {
				for _, b := range meanings[:i] {
					if d := distance(lab(hex[a], matrix), lab(hex[b], matrix)); d < farApart {
						t.Errorf("%s theme, %s: %s and %s are only %.0f apart", theme, eye, a, b, d)
					}
				}
			}
		}
	}
}

func TestOnlyColoursWithAMeaningAreUsed(t *testing.T) {
	allowed := []string{good, watch, bad, aside, blank, "text", "transparent"}
	key := regexp.MustCompile(`(?i)^(color|fixedColor|iconColor)$`)
	for _, name := range []string{"broker.json", "fleet.json"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var d any
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		found := 0
		var walk func(any)
		walk = func(v any) {
			switch v := v.(type) {
			case []any:
				for _, e := range v {
					walk(e)
				}
			case map[string]any:
				for k, e := range v {
					if s, ok := e.(string); ok && key.MatchString(k) {
						found++
						if !slices.Contains(allowed, s) {
							t.Errorf("%s: colour %q has no meaning", name, s)
						}
					}
					walk(e)
				}
			}
		}
		walk(d)
		if found == 0 {
			t.Errorf("%s: no colour found", name)
		}
	}
}

// lab is the colour in CIELAB under D65, as that eye sees it.
func lab(hex string, eye [3][3]float64) [3]float64 {
	var rgb, seen [3]float64
	for i := range rgb {
		n, err := strconv.ParseUint(hex[1+2*i:3+2*i], 16, 8)
		if err != nil {
			panic(err)
		}
		if c := float64(n) / 255; c <= 0.04045 {
			rgb[i] = c / 12.92
		} else {
			rgb[i] = math.Pow((c+0.055)/1.055, 2.4)
		}
	}
	for i := range seen {
		seen[i] = min(1, max(0, eye[i][0]*rgb[0]+eye[i][1]*rgb[1]+eye[i][2]*rgb[2]))
	}
	f := func(t float64) float64 {
		if t > 0.008856 {
			return math.Cbrt(t)
		}
		return 7.787*t + 16.0/116
	}
	x := f((0.4124*seen[0] + 0.3576*seen[1] + 0.1805*seen[2]) / 0.95047)
	y := f(0.2126*seen[0] + 0.7152*seen[1] + 0.0722*seen[2])
	z := f((0.0193*seen[0] + 0.1192*seen[1] + 0.9505*seen[2]) / 1.08883)
	return [3]float64{116*y - 16, 500 * (x - y), 200 * (y - z)}
}

func distance(a, b [3]float64) float64 {
	return math.Sqrt((a[0]-b[0])*(a[0]-b[0]) + (a[1]-b[1])*(a[1]-b[1]) + (a[2]-b[2])*(a[2]-b[2]))
}
