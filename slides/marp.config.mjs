// Marp's settings: our theme, our own HTML, and no pictures from elsewhere in place of emoji.
export default {
  html: true,
  themeSet: './build/theme.css',
  options: { emoji: { shortcode: false, unicode: false }, script: { source: 'inline' } },
}
